"""What people do, for tests and the demo: they join, write, click; and what an operator of Slack does."""

import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.server import BOOK, FAULTS
from kingdom.standins.slack.buttons import click_payload
from kingdom.standins.slack.events import queue, tell_message
from kingdom.standins.slack.messages import content, find_message, post
from kingdom.standins.slack.socket_mode import COURIER
from kingdom.standins.slack.workspace import (
    Refused,
    add_channel,
    add_user,
    direct_channel,
    find_channel,
    find_user,
    named_channel,
)

Wish = TypeVar("Wish")


class NewUser(msgspec.Struct):
    """A person who joins the workspace."""

    name: str
    real_name: str = ""


class NewChannel(msgspec.Struct):
    """A channel and who is in it; the app too, unless said otherwise."""

    name: str
    private: bool = False
    members: list[str] = []
    with_app: bool = True


class Membership(msgspec.Struct):
    """Somebody enters a channel, or leaves it; the app is somebody by its user id."""

    channel: str
    user: str
    leaves: bool = False


class Words(msgspec.Struct):
    """What a person writes: in a channel, in a thread of it, or without a channel to the app alone."""

    user: str
    text: str
    channel: str | None = None
    thread_ts: str | None = None
    mention: bool = False


class Click(msgspec.Struct):
    """A person clicks a button of a message."""

    channel: str
    ts: str
    user: str
    action_id: str


class Goodbye(msgspec.Struct):
    """All sockets end: after a word of Slack and some time, or without a reason at once."""

    reason: Literal["refresh_requested", "warning"] | None = "refresh_requested"
    grace_seconds: float = 1.0


class Settings(msgspec.Struct, omit_defaults=True):
    """How strict Slack is from now on; what is left out stays as it is."""

    rate_limit: bool | None = None
    ack_seconds: float | None = None
    retries: int | None = None


async def join(request: web.Request, wish: NewUser) -> dict[str, Any]:
    """Let a person join."""
    with request.app[BOOK].change():
        return add_user(request.app[BOOK], wish.name, wish.real_name)


async def found(request: web.Request, wish: NewChannel) -> dict[str, Any]:
    """Make a channel."""
    book = request.app[BOOK]
    members = [*([book.state["app"]["user_id"]] if wish.with_app else []), *wish.members]
    if named_channel(book, wish.name):
        raise Refused("name_taken")
    with book.change():
        return add_channel(book, wish.name.removeprefix("#"), "group" if wish.private else "channel", members)


async def enter_or_leave(request: web.Request, wish: Membership) -> dict[str, Any]:
    """Let somebody enter or leave a channel."""
    book = request.app[BOOK]
    with book.change():
        channel = _channel(book, wish.channel)
        find_user(book, wish.user)
        others = [member for member in channel["members"] if member != wish.user]
        channel["members"] = others if wish.leaves else [*others, wish.user]
        return channel


async def write(request: web.Request, wish: Words) -> dict[str, Any]:
    """Let a person write something."""
    book = request.app[BOOK]
    with book.change():
        find_user(book, wish.user)
        channel = _channel(book, wish.channel) if wish.channel else direct_channel(book, [wish.user])
        if wish.user not in channel["members"]:
            raise Refused("not_in_channel")
        text = f"<@{book.state['app']['user_id']}> {wish.text}" if wish.mention else wish.text
        author = {"user": wish.user, "client_msg_id": str(uuid.uuid4())}
        message = post(book, channel, author, content({"text": text}), wish.thread_ts)
        tell_message(book, request.app[FAULTS], channel, message)
    request.app[COURIER].wake()
    return {**message, "channel": channel["id"]}


async def click(request: web.Request, wish: Click) -> dict[str, Any]:
    """Let a person click, who then sees whether the app has taken notice; if not, only a new click helps."""
    book = request.app[BOOK]
    base_url = f"{request.scheme}://{request.host}"
    with book.change():
        channel = _channel(book, wish.channel)
        message = find_message(book, channel, wish.ts)
        payload = click_payload(book, base_url, channel, message, find_user(book, wish.user), wish.action_id)
        number = queue(book, request.app[FAULTS], "interactive", "block_actions", payload)
    request.app[COURIER].wake()
    acknowledged = await request.app[COURIER].is_acknowledged(number)
    return {"acknowledged": acknowledged, "trigger_id": payload["trigger_id"], "response_url": payload["response_url"]}


async def disconnect(request: web.Request, wish: Goodbye) -> dict[str, Any]:
    """End all sockets."""
    return {"disconnected": await request.app[COURIER].disconnect(wish.reason, wish.grace_seconds)}


async def change_settings(request: web.Request, wish: Settings) -> dict[str, Any]:
    """Change how strict Slack is."""
    with request.app[BOOK].change() as state:
        state["settings"].update(msgspec.to_builtins(wish))
        return dict(state["settings"])


async def show_connections(request: web.Request) -> web.Response:
    """Tell how many sockets are open."""
    return web.json_response({"connections": request.app[COURIER].connections})


def wished(
    shape: type[Wish], carry_out: Callable[[web.Request, Wish], Awaitable[dict[str, Any]]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of one kind of wish."""

    @functools.wraps(carry_out)
    async def handle(request: web.Request) -> web.Response:
        try:
            wish = msgspec.json.decode(await request.read(), type=shape)
            done = await carry_out(request, wish)
        except (Refused, msgspec.MsgspecError) as wrong:
            return web.json_response({"error": str(wrong)}, status=400)
        return web.json_response(done)

    return handle


def _channel(book: Book, where: str) -> dict[str, Any]:
    named = named_channel(book, where)
    return named or find_channel(book, where)
