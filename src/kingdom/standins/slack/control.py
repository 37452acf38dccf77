"""What people do, for tests and the demo: they join, write, click; and what an operator of Slack does."""

import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.server import FAULTS, STATE_FILE
from kingdom.standins.slack.buttons import click_payload
from kingdom.standins.slack.events import queue_envelope, queue_message_event
from kingdom.standins.slack.messages import find_message, post, read_content
from kingdom.standins.slack.socket_mode import SENDER
from kingdom.standins.slack.workspace import (
    SlackRefusal,
    add_channel,
    add_user,
    ensure_direct_channel,
    find_channel,
    find_channel_by_name,
    find_user,
)
from kingdom.standins.state_file import StateFile

Request = TypeVar("Request")


class NewSlackUser(msgspec.Struct):
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


class NewMessage(msgspec.Struct):
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


class Disconnection(msgspec.Struct):
    """All sockets end: after a word of Slack and some time, or without a reason at once."""

    reason: Literal["refresh_requested", "warning"] | None = "refresh_requested"
    grace_seconds: float = 1.0


class SlackSettingsChange(msgspec.Struct, omit_defaults=True):
    """How strict Slack is from now on; what is left out stays as it is."""

    rate_limit: bool | None = None
    ack_seconds: float | None = None
    retries: int | None = None


async def add_person(request: web.Request, wish: NewSlackUser) -> dict[str, Any]:
    """Let a person join."""
    with request.app[STATE_FILE].change():
        return add_user(request.app[STATE_FILE], wish.name, wish.real_name)


async def create_channel(request: web.Request, wish: NewChannel) -> dict[str, Any]:
    """Make a channel."""
    state_file = request.app[STATE_FILE]
    members = [*([state_file.state["app"]["user_id"]] if wish.with_app else []), *wish.members]
    if find_channel_by_name(state_file, wish.name):
        raise SlackRefusal("name_taken")
    with state_file.change():
        return add_channel(state_file, wish.name.removeprefix("#"), "group" if wish.private else "channel", members)


async def change_membership(request: web.Request, wish: Membership) -> dict[str, Any]:
    """Let somebody enter or leave a channel."""
    state_file = request.app[STATE_FILE]
    with state_file.change():
        channel = _channel(state_file, wish.channel)
        find_user(state_file, wish.user)
        others = [member for member in channel["members"] if member != wish.user]
        channel["members"] = others if wish.leaves else [*others, wish.user]
        return channel


async def write_message(request: web.Request, wish: NewMessage) -> dict[str, Any]:
    """Let a person write something."""
    state_file = request.app[STATE_FILE]
    with state_file.change():
        find_user(state_file, wish.user)
        channel = _channel(state_file, wish.channel) if wish.channel else ensure_direct_channel(state_file, [wish.user])
        if wish.user not in channel["members"]:
            raise SlackRefusal("not_in_channel")
        text = f"<@{state_file.state['app']['user_id']}> {wish.text}" if wish.mention else wish.text
        author = {"user": wish.user, "client_msg_id": str(uuid.uuid4())}
        message = post(state_file, channel, author, read_content({"text": text}), wish.thread_ts)
        queue_message_event(state_file, request.app[FAULTS], channel, message)
    request.app[SENDER].wake()
    return {**message, "channel": channel["id"]}


async def click_button(request: web.Request, wish: Click) -> dict[str, Any]:
    """Let a person click, who then sees whether the app has taken notice; if not, only a new click helps."""
    state_file = request.app[STATE_FILE]
    base_url = f"{request.scheme}://{request.host}"
    with state_file.change():
        channel = _channel(state_file, wish.channel)
        message = find_message(state_file, channel, wish.ts)
        payload = click_payload(
            state_file, base_url, channel, message, find_user(state_file, wish.user), wish.action_id
        )
        number = queue_envelope(state_file, request.app[FAULTS], "interactive", "block_actions", payload)
    request.app[SENDER].wake()
    acknowledged = await request.app[SENDER].is_acknowledged(number)
    return {"acknowledged": acknowledged, "trigger_id": payload["trigger_id"], "response_url": payload["response_url"]}


async def disconnect(request: web.Request, wish: Disconnection) -> dict[str, Any]:
    """End all sockets."""
    return {"disconnected": await request.app[SENDER].disconnect(wish.reason, wish.grace_seconds)}


async def change_settings(request: web.Request, wish: SlackSettingsChange) -> dict[str, Any]:
    """Change how strict Slack is."""
    with request.app[STATE_FILE].change() as state:
        state["settings"].update(msgspec.to_builtins(wish))
        return dict(state["settings"])


async def show_connections(request: web.Request) -> web.Response:
    """Tell how many sockets are open."""
    return web.json_response({"connections": request.app[SENDER].connections})


def control_handler(
    shape: type[Request], carry_out: Callable[[web.Request, Request], Awaitable[dict[str, Any]]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of one kind of wish."""

    @functools.wraps(carry_out)
    async def handle(request: web.Request) -> web.Response:
        try:
            wish = msgspec.json.decode(await request.read(), type=shape)
            done = await carry_out(request, wish)
        except (SlackRefusal, msgspec.MsgspecError) as wrong:
            return web.json_response({"error": str(wrong)}, status=400)
        return web.json_response(done)

    return handle


def _channel(state_file: StateFile, where: str) -> dict[str, Any]:
    named = find_channel_by_name(state_file, where)
    return named or find_channel(state_file, where)
