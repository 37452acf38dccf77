"""Buttons: what a click tells the app, and the address at which the app answers it."""

import secrets
import time
from typing import Any

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.server import BOOK, FAULTS
from kingdom.standins.slack.chat import author
from kingdom.standins.slack.events import tell_change, tell_message
from kingdom.standins.slack.messages import content, find_message, interactive_elements, post, update
from kingdom.standins.slack.socket_mode import COURIER
from kingdom.standins.slack.workspace import Refused, find_channel, next_ts

_ANSWERS_MAX = 5
_CHANNEL_NAMES = {"im": "directmessage", "group": "privategroup", "mpim": "mpdm"}


def click_payload(
    book: Book,
    base_url: str,
    channel: dict[str, Any],
    message: dict[str, Any],
    user: dict[str, Any],
    action_id: str,
) -> dict[str, Any]:
    """Return what the app is told when a person clicks a button; call it inside a change."""
    container = {"type": "message", "message_ts": message["ts"], "channel_id": channel["id"], "is_ephemeral": False}
    if "thread_ts" in message:
        container["thread_ts"] = message["thread_ts"]
    secret = secrets.token_hex(12)
    address = {"channel": channel["id"], "ts": message["ts"], "user": user["id"], "answers": 0}
    book.state["response_urls"][secret] = address
    team, app = book.state["team"], book.state["app"]
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
        "actions": [_action(book, message, action_id)],
    }


async def answer_click(request: web.Request) -> web.Response:
    """Do what the app posts to a response_url: replace or delete the message, or add one."""
    book = request.app[BOOK]
    address = book.state["response_urls"].get(request.match_info["secret"])
    if address is None or address["answers"] >= _ANSWERS_MAX:
        return web.json_response({"ok": False, "error": "used_url" if address else "expired_url"}, status=404)
    asked = await request.json()
    channel = find_channel(book, address["channel"])
    about = {key: asked.get(key) for key in ("text", "replace_original", "delete_original", "response_type")}
    try:
        with book.change("response_url", channel=channel["id"], ts=address["ts"], **about) as state:
            state["response_urls"][request.match_info["secret"]]["answers"] += 1
            _carry_out(request.app, channel, address, asked)
    except Refused as refused:
        return web.json_response({"ok": False, "error": str(refused)}, status=404)
    request.app[COURIER].wake()
    return web.json_response({"ok": True})


def _carry_out(
    application: web.Application, channel: dict[str, Any], address: dict[str, Any], asked: dict[str, Any]
) -> None:
    book, faults = application[BOOK], application[FAULTS]
    if asked.get("delete_original"):
        message = find_message(book, channel, address["ts"])
        book.state["messages"][channel["id"]].remove(message)
        tell_change(book, faults, channel, message, None)
        return
    said = content(asked)
    if asked.get("replace_original"):
        message = find_message(book, channel, address["ts"])
        tell_change(book, faults, channel, update(book, message, said), message)
    elif asked.get("response_type") == "in_channel":
        tell_message(book, faults, channel, post(book, channel, author(book), said, asked.get("thread_ts")))
    else:
        seen = {"channel": channel["id"], "user": address["user"], "thread_ts": asked.get("thread_ts")}
        book.state["ephemerals"].append({**seen, **said, "ts": next_ts(book)})


def _action(book: Book, message: dict[str, Any], action_id: str) -> dict[str, Any]:
    for block in message.get("blocks", []):
        for element in interactive_elements(block):
            if element["type"] == "button" and element["action_id"] == action_id:
                return {**element, "block_id": block["block_id"], "action_ts": next_ts(book)}
    raise Refused("button_not_found")
