"""Web API methods that read: conversations.* and users.*."""

import base64
import binascii
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from aiohttp import web

from kingdom.standins.server import STATE_FILE
from kingdom.standins.slack.messages import history, thread
from kingdom.standins.slack.workspace import (
    SlackRefusal,
    describe_channel,
    ensure_direct_channel,
    find_direct_channel,
    find_user,
    joined_channel,
    visible_channel,
)

_TYPES = {"channel": "public_channel", "group": "private_channel", "im": "im", "mpim": "mpim"}
_PAGE = 100
_PAGE_MAX = 999


def get_history(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the messages of a channel without thread replies, newest first."""
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    wanted = [message for message in history(state_file, channel) if _is_between(message, arguments)]
    return _message_page(wanted, arguments)


def get_replies(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the messages of a thread, oldest first. The first message is always included."""
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    parent, *replies = thread(state_file, channel, arguments.get("ts", ""))
    return _message_page([parent, *(reply for reply in replies if _is_between(reply, arguments))], arguments)


def open_conversation(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Open a conversation with people, or return the conversation that is already open."""
    state_file = request.app[STATE_FILE]
    already = {"no_op": True, "already_open": True}
    if arguments.get("channel"):
        return {"channel": describe_channel(state_file, joined_channel(state_file, arguments["channel"])), **already}
    asked = arguments.get("users") or ""
    users = asked if isinstance(asked, list) else [user for user in asked.split(",") if user]
    if not users:
        raise SlackRefusal("users_list_not_supplied")
    for user in users:
        find_user(state_file, user)
    channel = find_direct_channel(state_file, users)
    if channel is None:
        already = {}
        with state_file.change("conversations.open", users=users):
            channel = ensure_direct_channel(state_file, users)
    shown = describe_channel(state_file, channel) if _flag(arguments, "return_im") else {"id": channel["id"]}
    return {"channel": shown, **already}


def get_channel(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describe a channel."""
    state_file = request.app[STATE_FILE]
    return {"channel": describe_channel(state_file, visible_channel(state_file, arguments.get("channel", "")))}


def list_channels(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describe the visible channels of the requested kinds. The default kind is public channels."""
    state_file = request.app[STATE_FILE]
    asked = arguments.get("types") or "public_channel"
    types = asked if isinstance(asked, list) else asked.replace(" ", "").split(",")
    app_user = state_file.state["app"]["user_id"]
    wanted = [
        describe_channel(state_file, channel)
        for channel in state_file.state["channels"].values()
        if _TYPES[channel["kind"]] in types and (channel["kind"] == "channel" or app_user in channel["members"])
    ]
    page, cursor = _page(wanted, lambda channel: str(channel["id"]), arguments)
    return {"channels": page, "response_metadata": {"next_cursor": cursor}}


def list_members(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a channel."""
    channel = visible_channel(request.app[STATE_FILE], arguments.get("channel", ""))
    page, cursor = _page([{"id": member} for member in channel["members"]], lambda each: str(each["id"]), arguments)
    return {"members": [each["id"] for each in page], "response_metadata": {"next_cursor": cursor}}


def get_user(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describe a person."""
    return {"user": find_user(request.app[STATE_FILE], arguments.get("user", ""))}


def list_users(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Describe all users, including the user of the app."""
    users = list(request.app[STATE_FILE].state["users"].values())
    page, cursor = _page(users, lambda user: str(user["id"]), arguments)
    return {"members": page, "response_metadata": {"next_cursor": cursor}}


def _message_page(wanted: list[dict[str, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    page, cursor = _page(wanted, lambda message: str(message["ts"]), arguments)
    if not _flag(arguments, "include_all_metadata"):
        page = [{key: value for key, value in message.items() if key != "metadata"} for message in page]
    more = {"response_metadata": {"next_cursor": cursor}} if cursor else {}
    return {"messages": page, "has_more": bool(cursor), **more}


def _is_between(message: dict[str, Any], arguments: dict[str, Any]) -> bool:
    ts = Decimal(message["ts"])
    oldest, latest = _moment(arguments, "oldest"), _moment(arguments, "latest")
    if _flag(arguments, "inclusive") and ts in (oldest, latest):
        return True
    return (oldest is None or ts > oldest) and (latest is None or ts < latest)


def _moment(arguments: dict[str, Any], name: str) -> Decimal | None:
    try:
        return Decimal(str(arguments[name])) if arguments.get(name) else None
    except InvalidOperation as broken:
        raise SlackRefusal(f"invalid_ts_{name}") from broken


def _page(
    items: list[dict[str, Any]], key: Callable[[dict[str, Any]], str], arguments: dict[str, Any]
) -> tuple[list[dict[str, Any]], str]:
    """Return the page of items that starts at the cursor, and the cursor of the next page."""
    try:
        limit = min(int(arguments.get("limit") or _PAGE), _PAGE_MAX)
    except ValueError as broken:
        raise SlackRefusal("invalid_limit") from broken
    start = 0
    if arguments.get("cursor"):
        keys = [key(item) for item in items]
        try:
            start = keys.index(base64.b64decode(arguments["cursor"], validate=True).decode().removeprefix("next:"))
        except (ValueError, binascii.Error) as broken:
            raise SlackRefusal("invalid_cursor") from broken
    rest = items[start + limit :]
    cursor = base64.b64encode(f"next:{key(rest[0])}".encode()).decode() if rest else ""
    return items[start : start + limit], cursor


def _flag(arguments: dict[str, Any], name: str) -> bool:
    return arguments.get(name) in (True, 1, "1", "true", "True")
