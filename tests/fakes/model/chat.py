"""The Chat Completions API of OpenAI, as opencode and aider speak it; the Responses API has the same errors."""

import json
import re
import time
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

_FOLDER = re.compile(r"[Ww]orking directory: (?P<folder>/.*)")
_TITLE = re.compile(r"title generator|generate a title", re.IGNORECASE)
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def read(body: Mapping[str, Any], headers: Mapping[str, str]) -> Request:
    """Return the content of a request. A request for a title is not part of the conversation."""
    messages = body["messages"]
    texts = [text for message in messages if message["role"] == "system" for text in texts_of(message["content"])]
    folders = [_FOLDER.search(text) for text in texts]
    aside = not body.get("tools") and any(_TITLE.search(text) for text in texts)
    return Request(
        model=body["model"],
        stream=bool(body.get("stream")),
        session=headers.get("x-session-affinity", ""),
        entries=[] if aside else [entry for message in messages for entry in _entries(message)],
        tools={tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()},
        own_tool_name="kingdom_{}",
        folder=next((match["folder"].strip() for match in folders if match), ""),
    )


def plain(answer: ModelAnswer, request: Request) -> dict[str, Any]:
    """Return a response in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(text.words for text in answer.texts) or None}
    if answer.call is not None:
        message["tool_calls"] = _tool_calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    return {**_head(request), "object": "chat.completion", "choices": [choice], "usage": _usage(answer)}


def events(answer: ModelAnswer, request: Request) -> Iterator[Event]:
    """Yield a response as a stream."""
    head = {**_head(request), "object": "chat.completion.chunk"}

    def chunk(delta: Mapping[str, Any], pause: float = 0.0, finish: str | None = None) -> Event:
        return Event(data={**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}, pause=pause)

    yield chunk({"role": "assistant", "content": ""})
    for number, text in enumerate(answer.texts):
        for words in ["\n"] * bool(number) + text.parts():
            yield chunk({"content": words}, pause=text.every)
    if answer.hangs:
        return
    if answer.call is not None:
        yield chunk({"tool_calls": [{"index": 0, **call} for call in _tool_calls(answer)]})
    yield chunk({}, finish=_finish_reason(answer))
    yield Event(data={**head, "choices": [], "usage": _usage(answer)})
    yield Event(data="[DONE]")


def refused(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _KINDS.get(refusal.status, "server_error")
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": kind}}


def _entries(message: Mapping[str, Any]) -> Iterator[Entry]:
    texts = texts_of(message.get("content"))
    match message["role"]:
        case "user":
            yield from map(PromptEntry, texts)
        case "assistant":
            yield from (ModelEntry(text) for text in texts if text)
            yield from (ToolCallEntry(call["id"]) for call in message.get("tool_calls") or ())
        case "tool":
            yield ToolResultEntry(message["tool_call_id"], "\n".join(texts))


def _head(request: Request) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex[:20]}", "created": int(time.time()), "model": request.model}


def _tool_calls(answer: ModelAnswer) -> list[dict[str, Any]]:
    if answer.call is None:
        return []
    function = {"name": answer.call.tool, "arguments": json.dumps(answer.call.arguments)}
    return [{"id": answer.call.id, "type": "function", "function": function}]


def _finish_reason(answer: ModelAnswer) -> str:
    return "stop" if answer.call is None else "tool_calls"


def _usage(answer: ModelAnswer) -> dict[str, int]:
    spent, produced = answer.usage.get("input_tokens", 0), answer.usage.get("output_tokens", 0)
    return {"prompt_tokens": spent, "completion_tokens": produced, "total_tokens": spent + produced}
