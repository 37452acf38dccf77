"""Messages: what one may say, threads, reactions, and reading them again."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from kingdom.standins.book import Book
from kingdom.standins.slack.workspace import Refused, next_ts

_CONTENT = ("text", "blocks", "attachments", "metadata")
_BLOCKS_MAX = 50
_ELEMENTS_MAX = 25
_SECTION_TEXT_MAX = 3000
_BUTTON_TEXT_MAX = 75
_BUTTON_VALUE_MAX = 2000
_TEXT_MAX = 40_000


def content(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be said, checked as Slack checks it; in a form, blocks and metadata are JSON text."""
    said = {name: _decoded(name, arguments[name]) for name in _CONTENT if arguments.get(name) is not None}
    if not said.get("text") and not said.get("blocks") and not said.get("attachments"):
        raise Refused("no_text")
    if len(said.get("text", "")) > _TEXT_MAX:
        raise Refused("msg_too_long")
    metadata = said.get("metadata")
    if metadata and not (isinstance(metadata, dict) and {"event_type", "event_payload"} <= metadata.keys()):
        raise Refused("invalid_metadata_format")
    if "blocks" in said:
        _check_blocks(said["blocks"])
    return said


def post(
    book: Book, channel: dict[str, Any], author: dict[str, Any], said: dict[str, Any], thread_ts: str | None = None
) -> dict[str, Any]:
    """Add a message to a channel, or to one of its threads; call it inside a change."""
    message = {"type": "message", **author, "team": book.state["team"]["id"], "text": "", **said}
    if thread_ts:
        parent = thread_parent(book, channel, thread_ts)
        message |= {"thread_ts": parent["ts"], "parent_user_id": parent["user"]}
    message["ts"] = next_ts(book)
    for number, block in enumerate(message.get("blocks", [])):
        block.setdefault("block_id", f"block{number}")
        for place, element in enumerate(interactive_elements(block)):
            element.setdefault("action_id", f"action{place}")
    book.state["messages"][channel["id"]].append(message)
    return message


def update(book: Book, message: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Change what a message says and return how it was; a new text without blocks ends the old blocks."""
    before = dict(message)
    if "text" in said and "blocks" not in said:
        message.pop("blocks", None)
    message.update(said)
    if message["text"] != before["text"]:
        message["edited"] = {"user": message["user"], "ts": next_ts(book)}
    return before


def find_message(book: Book, channel: dict[str, Any], ts: str) -> dict[str, Any]:
    """Return the message of a timestamp."""
    for message in book.state["messages"][channel["id"]]:
        if message["ts"] == ts:
            found: dict[str, Any] = message
            return found
    raise Refused("message_not_found")


def thread_parent(book: Book, channel: dict[str, Any], ts: str) -> dict[str, Any]:
    """Return the message that a thread hangs on, also when asked by one of its replies."""
    try:
        message = find_message(book, channel, ts)
        return find_message(book, channel, message.get("thread_ts", ts))
    except Refused as missing:
        raise Refused("thread_not_found") from missing


def history(book: Book, channel: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what stands in a channel itself, the newest first, as it is shown."""
    replies = _replies_by_parent(book, channel)
    said = book.state["messages"][channel["id"]]
    return [_shown(message, replies) for message in reversed(said) if "thread_ts" not in message]


def thread(book: Book, channel: dict[str, Any], ts: str) -> list[dict[str, Any]]:
    """Return a thread, its first message first, as it is shown."""
    parent = thread_parent(book, channel, ts)
    replies = _replies_by_parent(book, channel)
    return [_shown(message, replies) for message in (parent, *replies[parent["ts"]])]


def react(message: dict[str, Any], name: str, user: str) -> None:
    """Add somebody's reaction to a message."""
    reactions = message.setdefault("reactions", [])
    reaction = next((each for each in reactions if each["name"] == name), None)
    if reaction is None:
        reaction = {"name": name, "users": [], "count": 0}
        reactions.append(reaction)
    if user in reaction["users"]:
        raise Refused("already_reacted")
    reaction["users"].append(user)
    reaction["count"] += 1


def take_reaction_back(message: dict[str, Any], name: str, user: str) -> None:
    """Remove somebody's reaction from a message."""
    for reaction in message.get("reactions", []):
        if reaction["name"] == name and user in reaction["users"]:
            reaction["users"].remove(user)
            reaction["count"] -= 1
            if not reaction["users"]:
                message["reactions"].remove(reaction)
            if not message["reactions"]:
                del message["reactions"]
            return
    raise Refused("no_reaction")


def interactive_elements(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a block that a person can use."""
    if block.get("type") == "actions":
        yield from block["elements"]
    if "accessory" in block:
        yield block["accessory"]


def _decoded(name: str, value: Any) -> Any:
    if name == "text" or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as broken:
        raise Refused(f"invalid_{name}_format") from broken


def _check_blocks(blocks: Any) -> None:
    if not isinstance(blocks, list) or not all(isinstance(block, dict) and block.get("type") for block in blocks):
        raise Refused("invalid_blocks_format")
    if len(blocks) > _BLOCKS_MAX:
        raise Refused("invalid_blocks")
    for block in blocks:
        if block["type"] == "actions" and not 0 < len(block.get("elements", [])) <= _ELEMENTS_MAX:
            raise Refused("invalid_blocks")
        if block["type"] == "section" and len(block.get("text", {}).get("text", "")) > _SECTION_TEXT_MAX:
            raise Refused("invalid_blocks")
        if not all(_is_fit(element) for element in interactive_elements(block)):
            raise Refused("invalid_blocks")


def _is_fit(element: dict[str, Any]) -> bool:
    if element.get("type") != "button":
        return True
    text = element.get("text", {}).get("text", "")
    return 0 < len(text) <= _BUTTON_TEXT_MAX and len(element.get("value", "")) <= _BUTTON_VALUE_MAX


def _replies_by_parent(book: Book, channel: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    replies = defaultdict(list)
    for message in book.state["messages"][channel["id"]]:
        if "thread_ts" in message:
            replies[message["thread_ts"]].append(message)
    return replies


def _shown(message: dict[str, Any], replies: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    answers = replies.get(message["ts"])
    if not answers:
        return dict(message)
    users = list(dict.fromkeys(answer["user"] for answer in answers))
    return {
        **message,
        "thread_ts": message["ts"],
        "reply_count": len(answers),
        "reply_users": users,
        "reply_users_count": len(users),
        "latest_reply": answers[-1]["ts"],
        "is_locked": False,
        "subscribed": True,
    }
