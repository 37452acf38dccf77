"""The Messages API of Anthropic, as Claude Code speaks it."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.model.answer import Event, ModelAnswer, Refusal
from tests.fakes.model.conversation import (
    Entry,
    ModelEntry,
    PromptEntry,
    Request,
    ToolCallEntry,
    ToolResultEntry,
    texts_of,
)

_NO_USAGE = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
_FOLDER = re.compile(r"[Ww]orking directory: (?P<folder>/.*)")
# Claude Code also sends its own texts as user messages.
_NOT_THE_USER = ("<system-reminder>", "[Request interrupted", "Continue from where you left off")
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Request:
    """Return the content of a request."""
    return Request(
        model=body["model"],
        stream=bool(body.get("stream")),
        session=headers.get("x-claude-code-session-id", ""),
        entries=[entry for message in body["messages"] for entry in _entries(message)],
        tools={tool["name"]: tool for tool in body.get("tools", ())},
        call_prefix="toolu_",
        folder=_folder(body),
    )


def plain(answer: ModelAnswer, request: Request) -> dict[str, Any]:
    """Return a response in one piece."""
    return {
        **_head(request),
        "content": _blocks(answer),
        "stop_reason": _stop_reason(answer),
        "stop_sequence": None,
        "usage": {**_NO_USAGE, **answer.usage},
    }


def events(answer: ModelAnswer, request: Request) -> Iterator[Event]:
    """Yield a response as a stream."""
    usage = {**_NO_USAGE, **answer.usage}
    message = {**_head(request), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=message)
    for index, text in enumerate(answer.texts):
        yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        for words in text.parts():
            delta = {"type": "text_delta", "text": words}
            yield _event("content_block_delta", pause=text.every, index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    if answer.hangs:
        return
    if answer.call is not None:
        index = len(answer.texts)
        yield _event("content_block_start", index=index, content_block={**_blocks(answer)[-1], "input": {}})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.call.arguments)}
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=usage)
    yield _event("message_stop")


def refused(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _KINDS.get(refusal.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _entries(message: Mapping[str, Any]) -> Iterator[Entry]:
    content = message["content"]
    if message["role"] == "assistant":
        yield from map(ModelEntry, texts_of(content))
    blocks = [] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_use":
            yield ToolCallEntry(block["id"])
        elif block["type"] == "tool_result":
            text = "\n".join(texts_of(block.get("content")))
            yield ToolResultEntry(block["tool_use_id"], text, is_error=bool(block.get("is_error")))
    if message["role"] == "user":
        yield from (PromptEntry(text) for text in texts_of(content) if not text.startswith(_NOT_THE_USER))


def _folder(body: Mapping[str, Any]) -> str:
    messages = [*texts_of(body.get("system"))]
    for message in body["messages"]:
        messages += texts_of(message["content"])
    found = [_FOLDER.search(text) for text in messages]
    return next((match["folder"].strip() for match in found if match), "")


def _head(request: Request) -> dict[str, Any]:
    return {"id": f"msg_{uuid.uuid4().hex[:20]}", "type": "message", "role": "assistant", "model": request.model}


def _blocks(answer: ModelAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text.words} for text in answer.texts]
    if answer.call is not None:
        call = answer.call
        blocks.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": dict(call.arguments)})
    return blocks


def _stop_reason(answer: ModelAnswer) -> str:
    return "end_turn" if answer.call is None else "tool_use"


def _event(kind: str, pause: float = 0.0, **data: Any) -> Event:
    return Event(data={"type": kind, **data}, name=kind, pause=pause)
