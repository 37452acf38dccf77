"""The workspace: the app, people, channels, and message timestamps."""

import time
from collections.abc import Sequence
from typing import Any

from kingdom.standins.state_file import StateFile

_MICROSECONDS = 1_000_000
_TEAM = "T000000001"


class SlackRefusal(Exception):
    """Raised when Slack refuses a call: status 200 with an error code."""


class SlackRateLimit(Exception):
    """Raised when a call exceeds the rate limit: status 429 with the seconds to wait."""


def empty_workspace() -> dict[str, Any]:
    """Return a workspace with only the app."""
    app = {"id": "A000000001", "bot_id": "B000000001", "user_id": "U000000001", "name": "kingdom"}
    return {
        "team": {"id": _TEAM, "name": "Stand-in", "domain": "standin"},
        "app": app,
        "numbers": {"user": 1},
        "users": {app["user_id"]: _person(app["user_id"], app["name"], "Kingdom", is_bot=True)},
        "channels": {},
        "messages": {},
        "ephemerals": [],
        "pending": [],
        "dropped": [],
        "response_urls": {},
        "last_ts": 0,
        "settings": {"rate_limit": False, "ack_seconds": 3.0, "retries": 3},
    }


def next_ts(state_file: StateFile) -> str:
    """Return a unique message timestamp. Call it inside `StateFile.change`."""
    ts = max(time.time_ns() // 1000, state_file.state["last_ts"] + 1)
    state_file.state["last_ts"] = ts
    return f"{ts // _MICROSECONDS}.{ts % _MICROSECONDS:06d}"


def add_user(state_file: StateFile, name: str, real_name: str = "") -> dict[str, Any]:
    """Add a person to the workspace. Call it inside `StateFile.change`."""
    user_id = f"U{state_file.next_number('user'):09d}"
    state_file.state["users"][user_id] = _person(user_id, name, real_name or name.title(), is_bot=False)
    return dict(state_file.state["users"][user_id])


def add_channel(state_file: StateFile, name: str, kind: str, members: Sequence[str]) -> dict[str, Any]:
    """Create a channel. Call it inside `StateFile.change`."""
    for member in members:
        find_user(state_file, member)
    letter = {"im": "D", "mpim": "G"}.get(kind, "C")
    channel = {
        "id": f"{letter}{state_file.next_number('channel'):09d}",
        "name": name,
        "kind": kind,
        "members": list(dict.fromkeys(members)),
        "created": int(time.time()),
    }
    state_file.state["channels"][channel["id"]] = channel
    state_file.state["messages"][channel["id"]] = []
    return channel


def find_user(state_file: StateFile, user_id: str) -> dict[str, Any]:
    """Return a person or the user of the app."""
    user: dict[str, Any] | None = state_file.state["users"].get(user_id)
    if user is None:
        raise SlackRefusal("user_not_found")
    return user


def find_channel(state_file: StateFile, channel_id: str) -> dict[str, Any]:
    """Return a channel by its id."""
    channel: dict[str, Any] | None = state_file.state["channels"].get(channel_id)
    if channel is None:
        raise SlackRefusal("channel_not_found")
    return channel


def visible_channel(state_file: StateFile, channel_id: str) -> dict[str, Any]:
    """Return a channel that the app can see. Private channels are visible only to members."""
    channel = find_channel(state_file, channel_id)
    if channel["kind"] != "channel" and not app_is_in(state_file, channel):
        raise SlackRefusal("channel_not_found")
    return channel


def joined_channel(state_file: StateFile, channel_id: str) -> dict[str, Any]:
    """Return a channel that the app is a member of."""
    channel = visible_channel(state_file, channel_id)
    if not app_is_in(state_file, channel):
        raise SlackRefusal("not_in_channel")
    return channel


def find_channel_by_name(state_file: StateFile, name: str) -> dict[str, Any] | None:
    """Return a channel by its name, with or without #."""
    wanted = name.removeprefix("#")
    named = (channel for channel in state_file.state["channels"].values() if wanted and channel["name"] == wanted)
    return next(named, None)


def find_direct_channel(state_file: StateFile, users: Sequence[str]) -> dict[str, Any] | None:
    """Return the open conversation of the app with people, or None."""
    members = {state_file.state["app"]["user_id"], *users}
    for channel in state_file.state["channels"].values():
        if channel["kind"] in ("im", "mpim") and set(channel["members"]) == members:
            found: dict[str, Any] = channel
            return found
    return None


def ensure_direct_channel(state_file: StateFile, users: Sequence[str]) -> dict[str, Any]:
    """Return the conversation of the app with people, opening it if needed. Call it inside `StateFile.change`."""
    kind = "im" if len(users) == 1 else "mpim"
    return find_direct_channel(state_file, users) or add_channel(
        state_file, "", kind, [state_file.state["app"]["user_id"], *users]
    )


def app_is_in(state_file: StateFile, channel: dict[str, Any]) -> bool:
    """Return whether the app is a member of a channel."""
    return state_file.state["app"]["user_id"] in channel["members"]


def describe_channel(state_file: StateFile, channel: dict[str, Any]) -> dict[str, Any]:
    """Return a channel in the form of the Web API."""
    kind = channel["kind"]
    shown = {
        "id": channel["id"],
        "created": channel["created"],
        "is_channel": kind == "channel",
        "is_group": kind == "group",
        "is_im": kind == "im",
        "is_mpim": kind == "mpim",
        "is_private": kind != "channel",
        "is_archived": False,
        "context_team_id": state_file.state["team"]["id"],
    }
    if kind == "im":
        others = [member for member in channel["members"] if member != state_file.state["app"]["user_id"]]
        return {**shown, "user": others[0], "is_open": True}
    name = channel["name"] or f"mpdm-{channel['id'].lower()}"
    return {
        **shown,
        "name": name,
        "name_normalized": name,
        "is_member": app_is_in(state_file, channel),
        "num_members": len(channel["members"]),
    }


def _person(user_id: str, name: str, real_name: str, *, is_bot: bool) -> dict[str, Any]:
    return {
        "id": user_id,
        "team_id": _TEAM,
        "name": name,
        "real_name": real_name,
        "deleted": False,
        "is_bot": is_bot,
        "is_app_user": False,
        "tz": "Etc/UTC",
        "profile": {"real_name": real_name, "display_name": name, "team": _TEAM},
    }
