"""The control interface of the Slack stand-in: actions of people and operators, for tests and the demo."""

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

_Body = TypeVar("_Body")


class NewSlackUser(msgspec.Struct):
    """A person who joins the workspace."""

    name: str
    real_name: str = ""


class NewChannel(msgspec.Struct):
    """A channel and its members. The app is a member by default."""

    name: str
    private: bool = False
    members: list[str] = []
    with_app: bool = True


class Membership(msgspec.Struct):
    """A user enters or leaves a channel. The app also has a user id."""

    channel: str
    user: str
    leaves: bool = False


class NewMessage(msgspec.Struct):
    """A message of a person in a channel or thread. Without a channel, it is a direct message to the app."""

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
    """All sockets are closed after a warning and a grace period. If `reason` is None, they are closed at once."""

    reason: Literal["refresh_requested", "warning"] | None = "refresh_requested"
    grace_seconds: float = 1.0


class SlackSettingsChange(msgspec.Struct, omit_defaults=True):
    """New settings of the server. Omitted settings stay unchanged."""

    rate_limit: bool | None = None
    ack_seconds: float | None = None
    retries: int | None = None


async def add_person(request: web.Request, body: NewSlackUser) -> dict[str, Any]:
    """Add a person to the workspace."""
    with request.app[STATE_FILE].change():
        return add_user(request.app[STATE_FILE], body.name, body.real_name)


async def create_channel(request: web.Request, body: NewChannel) -> dict[str, Any]:
    """Create a channel."""
    state_file = request.app[STATE_FILE]
    members = [*([state_file.state["app"]["user_id"]] if body.with_app else []), *body.members]
    if find_channel_by_name(state_file, body.name):
        raise SlackRefusal("name_taken")
    with state_file.change():
        return add_channel(state_file, body.name.removeprefix("#"), "group" if body.private else "channel", members)


async def change_membership(request: web.Request, body: Membership) -> dict[str, Any]:
    """Add a user to a channel, or remove a user from it."""
    state_file = request.app[STATE_FILE]
    with state_file.change():
        channel = _channel(state_file, body.channel)
        find_user(state_file, body.user)
        others = [member for member in channel["members"] if member != body.user]
        channel["members"] = others if body.leaves else [*others, body.user]
        return channel


async def write_message(request: web.Request, body: NewMessage) -> dict[str, Any]:
    """Write a message as a person."""
    state_file = request.app[STATE_FILE]
    with state_file.change():
        find_user(state_file, body.user)
        channel = _channel(state_file, body.channel) if body.channel else ensure_direct_channel(state_file, [body.user])
        if body.user not in channel["members"]:
            raise SlackRefusal("not_in_channel")
        text = f"<@{state_file.state['app']['user_id']}> {body.text}" if body.mention else body.text
        author = {"user": body.user, "client_msg_id": str(uuid.uuid4())}
        message = post(state_file, channel, author, read_content({"text": text}), body.thread_ts)
        queue_message_event(state_file, request.app[FAULTS], channel, message)
    request.app[SENDER].wake()
    return {**message, "channel": channel["id"]}


async def click_button(request: web.Request, body: Click) -> dict[str, Any]:
    """Click a button as a person, and return whether the app acknowledged the click. Clicks are sent only once."""
    state_file = request.app[STATE_FILE]
    base_url = f"{request.scheme}://{request.host}"
    with state_file.change():
        channel = _channel(state_file, body.channel)
        message = find_message(state_file, channel, body.ts)
        payload = click_payload(
            state_file, base_url, channel, message, find_user(state_file, body.user), body.action_id
        )
        number = queue_envelope(state_file, request.app[FAULTS], "interactive", "block_actions", payload)
    request.app[SENDER].wake()
    acknowledged = await request.app[SENDER].wait_for_acknowledgement(number)
    return {"acknowledged": acknowledged, "trigger_id": payload["trigger_id"], "response_url": payload["response_url"]}


async def disconnect(request: web.Request, body: Disconnection) -> dict[str, Any]:
    """Close all sockets."""
    return {"disconnected": await request.app[SENDER].disconnect(body.reason, body.grace_seconds)}


async def change_settings(request: web.Request, body: SlackSettingsChange) -> dict[str, Any]:
    """Change the settings of the server."""
    with request.app[STATE_FILE].change() as state:
        state["settings"].update(msgspec.to_builtins(body))
        return dict(state["settings"])


async def show_connections(request: web.Request) -> web.Response:
    """Return the number of open sockets."""
    return web.json_response({"connections": request.app[SENDER].connections})


def control_handler(
    shape: type[_Body], act: Callable[[web.Request, _Body], Awaitable[dict[str, Any]]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the request handler of one control action."""

    @functools.wraps(act)
    async def handle(request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=shape)
            done = await act(request, body)
        except (SlackRefusal, msgspec.MsgspecError) as wrong:
            return web.json_response({"error": str(wrong)}, status=400)
        return web.json_response(done)

    return handle


def _channel(state_file: StateFile, where: str) -> dict[str, Any]:
    named = find_channel_by_name(state_file, where)
    return named or find_channel(state_file, where)
