"""Web API methods that write: chat.* and reactions.*."""

import math
import time
from typing import Any

from aiohttp import web

from kingdom.standins.server import FAULTS, STATE_FILE
from kingdom.standins.slack.events import queue_change_event, queue_message_event
from kingdom.standins.slack.messages import (
    add_user_reaction,
    find_message,
    post,
    read_content,
    remove_user_reaction,
    thread,
    update,
)
from kingdom.standins.slack.workspace import (
    SlackRateLimit,
    SlackRefusal,
    ensure_direct_channel,
    find_channel_by_name,
    find_user,
    joined_channel,
    next_ts,
)
from kingdom.standins.state_file import StateFile

# Slack's rate limit of each channel.
_SECONDS_PER_MESSAGE = 1.0
# The time of the last message per channel.
LAST_POSTS = web.AppKey("last_posts", dict[str, float])


def post_message(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Post a message to a channel, which is given by its id or name, or to a person."""
    state_file = request.app[STATE_FILE]
    channel = _resolve_channel(state_file, arguments.get("channel", ""))
    content = read_content(arguments)
    _check_rate_limit(request.app, channel["id"])
    details = {"channel": channel["id"], "thread_ts": arguments.get("thread_ts"), **_call_details(content, arguments)}
    with state_file.change("chat.postMessage", **details):
        message = post(state_file, channel, app_author(state_file), content, arguments.get("thread_ts"))
        queue_message_event(state_file, request.app[FAULTS], channel, message)
    return {"channel": channel["id"], "ts": message["ts"], "message": message}


def post_ephemeral(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Show a message to one person only, without a history entry."""
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    user = arguments.get("user", "")
    if user not in channel["members"]:
        raise SlackRefusal("user_not_in_channel")
    content = read_content(arguments)
    details = {"channel": channel["id"], "user": user, "thread_ts": arguments.get("thread_ts")}
    with state_file.change("chat.postEphemeral", **details, **_call_details(content, arguments)) as state:
        ts = next_ts(state_file)
        state["ephemerals"].append({**details, **content, "ts": ts})
    return {"message_ts": ts}


def update_message(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Change a message of the app."""
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    ts = arguments.get("ts", "")
    if "bot_id" not in find_message(state_file, channel, ts):
        raise SlackRefusal("cant_update_message")
    content = read_content(arguments)
    with state_file.change("chat.update", channel=channel["id"], ts=ts, **_call_details(content, arguments)):
        message = find_message(state_file, channel, ts)
        before = update(state_file, message, content)
        queue_change_event(state_file, request.app[FAULTS], channel, before, message)
    return {"channel": channel["id"], "ts": ts, "text": message["text"], "message": message}


def add_reaction(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """React to a message as the app."""
    return _change_reaction("reactions.add", request, arguments)


def remove_reaction(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove a reaction of the app."""
    return _change_reaction("reactions.remove", request, arguments)


def get_reactions(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a message with all its reactions."""
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    ts = arguments.get("timestamp", "")
    find_message(state_file, channel, ts)
    message = next(each for each in thread(state_file, channel, ts) if each["ts"] == ts)
    return {"type": "message", "channel": channel["id"], "message": message}


def app_author(state_file: StateFile) -> dict[str, Any]:
    """Return the author fields of a message by the app."""
    app = state_file.state["app"]
    return {"user": app["user_id"], "bot_id": app["bot_id"], "app_id": app["id"]}


def _resolve_channel(state_file: StateFile, where: str) -> dict[str, Any]:
    if where in state_file.state["users"]:
        if find_user(state_file, where)["is_bot"]:
            raise SlackRefusal("cannot_dm_bot")
        with state_file.change():
            return ensure_direct_channel(state_file, [where])
    named = find_channel_by_name(state_file, where) if where else None
    return joined_channel(state_file, named["id"] if named else where)


def _check_rate_limit(application: web.Application, channel_id: str) -> None:
    if not application[STATE_FILE].state["settings"]["rate_limit"]:
        return
    now = time.monotonic()
    if now < application[LAST_POSTS].get(channel_id, -math.inf) + _SECONDS_PER_MESSAGE:
        raise SlackRateLimit
    application[LAST_POSTS][channel_id] = now


def _change_reaction(call: str, request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    state_file = request.app[STATE_FILE]
    channel = joined_channel(state_file, arguments.get("channel", ""))
    ts, name = arguments.get("timestamp", ""), arguments.get("name", "").strip(":")
    if not name:
        raise SlackRefusal("invalid_name")
    with state_file.change(call, channel=channel["id"], ts=ts, name=name):
        change = add_user_reaction if call == "reactions.add" else remove_user_reaction
        change(find_message(state_file, channel, ts), name, state_file.state["app"]["user_id"])
    return {}


def _call_details(content: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    unfurling = {name: arguments.get(name) for name in ("unfurl_links", "unfurl_media")}
    return {
        "text": content.get("text"),
        "blocks": content.get("blocks"),
        "metadata": content.get("metadata"),
        **unfurling,
    }
