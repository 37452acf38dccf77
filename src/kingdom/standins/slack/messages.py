"""Messages: checks of their content, threads, reactions and history."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from kingdom.standins.slack.workspace import SlackRefusal, next_ts
from kingdom.standins.state_file import StateFile

_CONTENT = ("text", "blocks", "attachments", "metadata")
_BLOCKS_MAX = 50
_ELEMENTS_MAX = 25
_SECTION_TEXT_MAX = 3000
_BUTTON_TEXT_MAX = 75
_BUTTON_VALUE_MAX = 2000
_TEXT_MAX = 40_000


def read_content(arguments: dict[str, Any]) -> dict[str, Any]:
    """Check the content of a message as Slack does, and return it. In a form, blocks and metadata are JSON text."""
    content = {name: _decoded(name, arguments[name]) for name in _CONTENT if arguments.get(name) is not None}
    if not content.get("text") and not content.get("blocks") and not content.get("attachments"):
        raise SlackRefusal("no_text")
    if len(content.get("text", "")) > _TEXT_MAX:
        raise SlackRefusal("msg_too_long")
    metadata = content.get("metadata")
    if metadata and not (isinstance(metadata, dict) and {"event_type", "event_payload"} <= metadata.keys()):
        raise SlackRefusal("invalid_metadata_format")
    if "blocks" in content:
        _check_blocks(content["blocks"])
    return content


def post(
    state_file: StateFile,
    channel: dict[str, Any],
    author: dict[str, Any],
    content: dict[str, Any],
    thread_ts: str | None = None,
) -> dict[str, Any]:
    """Add a message to a channel or to one of its threads. Call it inside `StateFile.change`."""
    message = {"type": "message", **author, "team": state_file.state["team"]["id"], "text": "", **content}
    if thread_ts:
        parent = thread_parent(state_file, channel, thread_ts)
        message |= {"thread_ts": parent["ts"], "parent_user_id": parent["user"]}
    message["ts"] = next_ts(state_file)
    for number, block in enumerate(message.get("blocks", [])):
        block.setdefault("block_id", f"block{number}")
        for place, element in enumerate(interactive_elements(block)):
            element.setdefault("action_id", f"action{place}")
    state_file.state["messages"][channel["id"]].append(message)
    return message


def update(state_file: StateFile, message: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Change a message and return its earlier state. A new text without blocks removes the blocks."""
    before = dict(message)
    if "text" in content and "blocks" not in content:
        message.pop("blocks", None)
    message.update(content)
    if message["text"] != before["text"]:
        message["edited"] = {"user": message["user"], "ts": next_ts(state_file)}
    return before


def find_message(state_file: StateFile, channel: dict[str, Any], ts: str) -> dict[str, Any]:
    """Return the message with a timestamp."""
    for message in state_file.state["messages"][channel["id"]]:
        if message["ts"] == ts:
            found: dict[str, Any] = message
            return found
    raise SlackRefusal("message_not_found")


def thread_parent(state_file: StateFile, channel: dict[str, Any], ts: str) -> dict[str, Any]:
    """Return the first message of a thread. `ts` is the timestamp of any of its messages."""
    try:
        message = find_message(state_file, channel, ts)
        return find_message(state_file, channel, message.get("thread_ts", ts))
    except SlackRefusal as missing:
        raise SlackRefusal("thread_not_found") from missing


def history(state_file: StateFile, channel: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a channel without replies, newest first."""
    replies = _replies_by_parent(state_file, channel)
    content = state_file.state["messages"][channel["id"]]
    return [_describe(message, replies) for message in reversed(content) if "thread_ts" not in message]


def thread(state_file: StateFile, channel: dict[str, Any], ts: str) -> list[dict[str, Any]]:
    """Return the messages of a thread, oldest first."""
    parent = thread_parent(state_file, channel, ts)
    replies = _replies_by_parent(state_file, channel)
    return [_describe(message, replies) for message in (parent, *replies[parent["ts"]])]


def add_user_reaction(message: dict[str, Any], name: str, user: str) -> None:
    """Add the reaction of a user to a message."""
    reactions = message.setdefault("reactions", [])
    reaction = next((each for each in reactions if each["name"] == name), None)
    if reaction is None:
        reaction = {"name": name, "users": [], "count": 0}
        reactions.append(reaction)
    if user in reaction["users"]:
        raise SlackRefusal("already_reacted")
    reaction["users"].append(user)
    reaction["count"] += 1


def remove_user_reaction(message: dict[str, Any], name: str, user: str) -> None:
    """Remove the reaction of a user from a message."""
    for reaction in message.get("reactions", []):
        if reaction["name"] == name and user in reaction["users"]:
            reaction["users"].remove(user)
            reaction["count"] -= 1
            if not reaction["users"]:
                message["reactions"].remove(reaction)
            if not message["reactions"]:
                del message["reactions"]
            return
    raise SlackRefusal("no_reaction")


def interactive_elements(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the interactive elements of a block."""
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
        raise SlackRefusal(f"invalid_{name}_format") from broken


def _check_blocks(blocks: Any) -> None:
    if not isinstance(blocks, list) or not all(isinstance(block, dict) and block.get("type") for block in blocks):
        raise SlackRefusal("invalid_blocks_format")
    if len(blocks) > _BLOCKS_MAX:
        raise SlackRefusal("invalid_blocks")
    for block in blocks:
        if block["type"] == "actions" and not 0 < len(block.get("elements", [])) <= _ELEMENTS_MAX:
            raise SlackRefusal("invalid_blocks")
        if block["type"] == "section" and len(block.get("text", {}).get("text", "")) > _SECTION_TEXT_MAX:
            raise SlackRefusal("invalid_blocks")
        if not all(_is_valid_element(element) for element in interactive_elements(block)):
            raise SlackRefusal("invalid_blocks")


def _is_valid_element(element: dict[str, Any]) -> bool:
    if element.get("type") != "button":
        return True
    text = element.get("text", {}).get("text", "")
    return 0 < len(text) <= _BUTTON_TEXT_MAX and len(element.get("value", "")) <= _BUTTON_VALUE_MAX


def _replies_by_parent(state_file: StateFile, channel: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    replies = defaultdict(list)
    for message in state_file.state["messages"][channel["id"]]:
        if "thread_ts" in message:
            replies[message["thread_ts"]].append(message)
    return replies


def _describe(message: dict[str, Any], replies: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
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
