"""Web API methods by which the app says something: chat.* and reactions.*."""

import math
import time
from typing import Any

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.server import BOOK, FAULTS
from kingdom.standins.slack.events import tell_change, tell_message
from kingdom.standins.slack.messages import content, find_message, post, react, take_reaction_back, thread, update
from kingdom.standins.slack.workspace import (
    RateLimited,
    Refused,
    direct_channel,
    find_user,
    joined_channel,
    named_channel,
    next_ts,
)

_PACE_SECONDS = 1.0
# When a message was last let into a channel.
PACE = web.AppKey("pace", dict[str, float])


def post_message(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Post a message to a channel, by its id or name, or to a person."""
    book = request.app[BOOK]
    channel = _addressed(book, arguments.get("channel", ""))
    said = content(arguments)
    _keep_pace(request.app, channel["id"])
    about = {"channel": channel["id"], "thread_ts": arguments.get("thread_ts"), **_about(said, arguments)}
    with book.change("chat.postMessage", **about):
        message = post(book, channel, author(book), said, arguments.get("thread_ts"))
        tell_message(book, request.app[FAULTS], channel, message)
    return {"channel": channel["id"], "ts": message["ts"], "message": message}


def post_ephemeral(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Show something to one person only; no history has it."""
    book = request.app[BOOK]
    channel = joined_channel(book, arguments.get("channel", ""))
    user = arguments.get("user", "")
    if user not in channel["members"]:
        raise Refused("user_not_in_channel")
    said = content(arguments)
    about = {"channel": channel["id"], "user": user, "thread_ts": arguments.get("thread_ts")}
    with book.change("chat.postEphemeral", **about, **_about(said, arguments)) as state:
        ts = next_ts(book)
        state["ephemerals"].append({**about, **said, "ts": ts})
    return {"message_ts": ts}


def update_message(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Change a message of the app."""
    book = request.app[BOOK]
    channel = joined_channel(book, arguments.get("channel", ""))
    ts = arguments.get("ts", "")
    if "bot_id" not in find_message(book, channel, ts):
        raise Refused("cant_update_message")
    said = content(arguments)
    with book.change("chat.update", channel=channel["id"], ts=ts, **_about(said, arguments)):
        message = find_message(book, channel, ts)
        before = update(book, message, said)
        tell_change(book, request.app[FAULTS], channel, before, message)
    return {"channel": channel["id"], "ts": ts, "text": message["text"], "message": message}


def add_reaction(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """React to a message as the app."""
    return _change_reaction("reactions.add", request, arguments)


def remove_reaction(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Take a reaction of the app back."""
    return _change_reaction("reactions.remove", request, arguments)


def get_reactions(request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a message with everybody's reactions."""
    book = request.app[BOOK]
    channel = joined_channel(book, arguments.get("channel", ""))
    ts = arguments.get("timestamp", "")
    find_message(book, channel, ts)
    message = next(each for each in thread(book, channel, ts) if each["ts"] == ts)
    return {"type": "message", "channel": channel["id"], "message": message}


def author(book: Book) -> dict[str, Any]:
    """Return who has written a message of the app."""
    app = book.state["app"]
    return {"user": app["user_id"], "bot_id": app["bot_id"], "app_id": app["id"]}


def _addressed(book: Book, where: str) -> dict[str, Any]:
    if where in book.state["users"]:
        if find_user(book, where)["is_bot"]:
            raise Refused("cannot_dm_bot")
        with book.change():
            return direct_channel(book, [where])
    named = named_channel(book, where) if where else None
    return joined_channel(book, named["id"] if named else where)


def _keep_pace(application: web.Application, channel_id: str) -> None:
    if not application[BOOK].state["settings"]["rate_limit"]:
        return
    now = time.monotonic()
    if now < application[PACE].get(channel_id, -math.inf) + _PACE_SECONDS:
        raise RateLimited
    application[PACE][channel_id] = now


def _change_reaction(call: str, request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    book = request.app[BOOK]
    channel = joined_channel(book, arguments.get("channel", ""))
    ts, name = arguments.get("timestamp", ""), arguments.get("name", "").strip(":")
    if not name:
        raise Refused("invalid_name")
    with book.change(call, channel=channel["id"], ts=ts, name=name):
        change = react if call == "reactions.add" else take_reaction_back
        change(find_message(book, channel, ts), name, book.state["app"]["user_id"])
    return {}


def _about(said: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    looks = {name: arguments.get(name) for name in ("unfurl_links", "unfurl_media")}
    return {"text": said.get("text"), "blocks": said.get("blocks"), "metadata": said.get("metadata"), **looks}
