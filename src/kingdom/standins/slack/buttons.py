"""Buttons: the payload of a click, and the response_url for the app's answer."""

import secrets
import time
from typing import Any

from aiohttp import web

from kingdom.standins.server import FAULTS, STATE_FILE
from kingdom.standins.slack.chat import app_author
from kingdom.standins.slack.events import queue_change_event, queue_message_event
from kingdom.standins.slack.messages import find_message, interactive_elements, post, read_content, update
from kingdom.standins.slack.socket_mode import SENDER
from kingdom.standins.slack.workspace import SlackRefusal, find_channel, next_ts
from kingdom.standins.state_file import StateFile

# Slack accepts five answers to one response_url.
_ANSWERS_MAX = 5
_CHANNEL_NAMES = {"im": "directmessage", "group": "privategroup", "mpim": "mpdm"}


def click_payload(
    state_file: StateFile,
    base_url: str,
    channel: dict[str, Any],
    message: dict[str, Any],
    user: dict[str, Any],
    action_id: str,
) -> dict[str, Any]:
    """Return the payload for the app when a person clicks a button. Call it inside `StateFile.change`."""
    container = {"type": "message", "message_ts": message["ts"], "channel_id": channel["id"], "is_ephemeral": False}
    if "thread_ts" in message:
        container["thread_ts"] = message["thread_ts"]
    secret = secrets.token_hex(12)
    address = {"channel": channel["id"], "ts": message["ts"], "user": user["id"], "answers": 0}
    state_file.state["response_urls"][secret] = address
    team, app = state_file.state["team"], state_file.state["app"]
    return {
        "type": "block_actions",
        "user": {"id": user["id"], "username": user["name"], "name": user["name"], "team_id": team["id"]},
        "api_app_id": app["id"],
        "token": "stand-in",
        "container": container,
        "trigger_id": f"{time.time_ns()}.{secrets.token_hex(8)}",
        "team": {"id": team["id"], "domain": team["domain"]},
        "enterprise": None,
        "is_enterprise_install": False,
        "channel": {"id": channel["id"], "name": _CHANNEL_NAMES.get(channel["kind"], channel["name"])},
        "message": {key: value for key, value in message.items() if key != "metadata"},
        "state": {"values": {}},
        "response_url": f"{base_url}/actions/{team['id']}/{secret}",
        "actions": [_action(state_file, message, action_id)],
    }


async def answer_click(request: web.Request) -> web.Response:
    """Handle the app's answer to a response_url: replace or delete the message, or post another message."""
    state_file = request.app[STATE_FILE]
    address = state_file.state["response_urls"].get(request.match_info["secret"])
    if address is None or address["answers"] >= _ANSWERS_MAX:
        return web.json_response({"ok": False, "error": "used_url" if address else "expired_url"}, status=404)
    asked = await request.json()
    channel = find_channel(state_file, address["channel"])
    details = {key: asked.get(key) for key in ("text", "replace_original", "delete_original", "response_type")}
    try:
        with state_file.change("response_url", channel=channel["id"], ts=address["ts"], **details) as state:
            state["response_urls"][request.match_info["secret"]]["answers"] += 1
            _apply_response(request.app, channel, address, asked)
    except SlackRefusal as refused:
        return web.json_response({"ok": False, "error": str(refused)}, status=404)
    request.app[SENDER].wake()
    return web.json_response({"ok": True})


def _apply_response(
    application: web.Application, channel: dict[str, Any], address: dict[str, Any], asked: dict[str, Any]
) -> None:
    state_file, faults = application[STATE_FILE], application[FAULTS]
    if asked.get("delete_original"):
        message = find_message(state_file, channel, address["ts"])
        state_file.state["messages"][channel["id"]].remove(message)
        queue_change_event(state_file, faults, channel, message, None)
        return
    content = read_content(asked)
    if asked.get("replace_original"):
        message = find_message(state_file, channel, address["ts"])
        queue_change_event(state_file, faults, channel, update(state_file, message, content), message)
    elif asked.get("response_type") == "in_channel":
        queue_message_event(
            state_file,
            faults,
            channel,
            post(state_file, channel, app_author(state_file), content, asked.get("thread_ts")),
        )
    else:
        seen = {"channel": channel["id"], "user": address["user"], "thread_ts": asked.get("thread_ts")}
        state_file.state["ephemerals"].append({**seen, **content, "ts": next_ts(state_file)})


def _action(state_file: StateFile, message: dict[str, Any], action_id: str) -> dict[str, Any]:
    for block in message.get("blocks", []):
        for element in interactive_elements(block):
            if element["type"] == "button" and element["action_id"] == action_id:
                return {**element, "block_id": block["block_id"], "action_ts": next_ts(state_file)}
    raise SlackRefusal("button_not_found")
