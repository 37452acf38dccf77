"""The Responses API of OpenAI, as Codex speaks it."""

import itertools
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.model.answer import Call, Event, ModelAnswer, Text
from tests.fakes.model.conversation import (
    Entry,
    ModelEntry,
    PromptEntry,
    Request,
    ToolCallEntry,
    ToolResultEntry,
    texts_of,
)

_FOLDER = re.compile(r"<cwd>(?P<folder>.*?)</cwd>")
_FAILED = re.compile(r"exited with code [1-9]")
# Codex also sends its own texts as user messages.
_NOT_THE_USER = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md")
Item = dict[str, Any]


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Request:
    """Return the content of a request."""
    items = body["input"]
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    folders = [_FOLDER.search(text) for item in items for text in texts_of(item.get("content"))]
    return Request(
        model=body["model"],
        stream=bool(body.get("stream")),
        session=headers.get("session-id", body.get("prompt_cache_key", "")),
        entries=[entry for item in items for entry in _entries(item)],
        tools={tool["name"]: tool for tool in body.get("tools", ()) if "name" in tool},
        # A tool of an MCP server is named by the server as its namespace and by its name.
        own_tool_name="mcp__kingdom/{}",
        folder=next((match["folder"] for match in reversed(folders) if match), ""),
    )


def plain(answer: ModelAnswer, request: Request) -> dict[str, Any]:
    """Return a response in one piece."""
    items = [_message(text) for text in answer.texts]
    if answer.call is not None:
        items.append(_function_call(answer.call))
    return _response(answer, request, items)


def events(answer: ModelAnswer, request: Request) -> Iterator[Event]:
    """Yield a response as a stream."""
    numbers = itertools.count()
    response = plain(answer, request)
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield _event(numbers, "response.created", response=begun)
    for index, item in enumerate(response["output"]):
        if item["type"] == "message":
            yield from _message_events(numbers, index, item, answer.texts[index])
        elif not answer.hangs:
            yield from _call_events(numbers, index, item)
    if not answer.hangs:
        yield _event(numbers, "response.completed", response=response)


def _entries(item: Mapping[str, Any]) -> Iterator[Entry]:
    kind = item.get("type", "message")
    if kind == "message" and item["role"] == "assistant":
        yield from map(ModelEntry, texts_of(item["content"]))
    elif kind == "message" and item["role"] == "user":
        yield from (PromptEntry(text) for text in texts_of(item["content"]) if not text.startswith(_NOT_THE_USER))
    elif kind.endswith("_call") and "call_id" in item:
        yield ToolCallEntry(item["call_id"])
    elif kind.endswith("_call_output"):
        text = "\n".join(texts_of(item["output"]))
        yield ToolResultEntry(item["call_id"], text, is_error=_FAILED.search(text) is not None)


def _message(text: Text) -> Item:
    part = {"type": "output_text", "text": text.words, "annotations": []}
    made = f"msg_{uuid.uuid4().hex[:20]}"
    return {"type": "message", "id": made, "role": "assistant", "status": "completed", "content": [part]}


def _function_call(call: Call) -> Item:
    namespace, _, name = call.tool.rpartition("/")
    item = {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex[:20]}",
        "call_id": call.id,
        "name": name,
        "arguments": json.dumps(call.arguments),
        "status": "completed",
    }
    return {**item, "namespace": namespace} if namespace else item


def _response(answer: ModelAnswer, request: Request, items: list[Item]) -> dict[str, Any]:
    spent, produced = answer.usage.get("input_tokens", 0), answer.usage.get("output_tokens", 0)
    return {
        "id": f"resp_{uuid.uuid4().hex[:20]}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": "completed",
        "output": items,
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": spent,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": produced,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": spent + produced,
        },
    }


def _message_events(numbers: Iterator[int], index: int, item: Item, text: Text) -> Iterator[Event]:
    part = item["content"][0]
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    added = {**item, "status": "in_progress", "content": []}
    yield _event(numbers, "response.output_item.added", output_index=index, item=added)
    yield _event(numbers, "response.content_part.added", **where, part={**part, "text": ""})
    for words in text.parts():
        yield _event(numbers, "response.output_text.delta", pause=text.every, **where, delta=words)
    yield _event(numbers, "response.output_text.done", **where, text=text.words)
    yield _event(numbers, "response.content_part.done", **where, part=part)
    yield _event(numbers, "response.output_item.done", output_index=index, item=item)


def _call_events(numbers: Iterator[int], index: int, item: Item) -> Iterator[Event]:
    where = {"item_id": item["id"], "output_index": index}
    added = {**item, "status": "in_progress", "arguments": ""}
    yield _event(numbers, "response.output_item.added", output_index=index, item=added)
    yield _event(numbers, "response.function_call_arguments.delta", **where, delta=item["arguments"])
    yield _event(numbers, "response.function_call_arguments.done", **where, arguments=item["arguments"])
    yield _event(numbers, "response.output_item.done", output_index=index, item=item)


def _event(numbers: Iterator[int], kind: str, pause: float = 0.0, **data: Any) -> Event:
    return Event(data={"type": kind, "sequence_number": next(numbers), **data}, name=kind, pause=pause)
