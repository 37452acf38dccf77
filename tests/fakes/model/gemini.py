"""The generateContent API of Gemini, as Gemini CLI speaks it."""

import re
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

_FOLDER = re.compile(r"(?:working directory|Workspace Directories)[^/\n]*\n?[^/\n]*(?P<folder>/.*)", re.IGNORECASE)
_FAILED = re.compile(r"^Exit Code: [1-9]", re.MULTILINE)
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def read(body: Mapping[str, Any], *, model: str, stream: bool) -> Request:
    """Return the content of a request. A request without tools is not part of the conversation."""
    declared = [tool.get("functionDeclarations", ()) for tool in body.get("tools") or ()]
    tools = {function["name"]: function for functions in declared for function in functions}
    messages = texts_of(body.get("systemInstruction", {}).get("parts"))
    for content in body["contents"]:
        messages += texts_of(content.get("parts"))
    folders = [_FOLDER.search(text) for text in messages]
    folder = next((match["folder"].strip() for match in folders if match), "")
    return Request(
        model=model,
        stream=stream,
        # Nothing in a request names the session.
        session=folder,
        entries=[entry for content in body["contents"] for entry in _entries(content)] if tools else [],
        tools=tools,
        own_tool_name="mcp_kingdom_{}",
        folder=folder,
    )


def plain(answer: ModelAnswer, request: Request) -> dict[str, Any]:
    """Return a response in one piece."""
    parts: list[dict[str, Any]] = [{"text": text.words} for text in answer.texts]
    return _chunk(request, [*parts, *_call_parts(answer)], answer)


def events(answer: ModelAnswer, request: Request) -> Iterator[Event]:
    """Yield a response as a stream."""
    for text in answer.texts:
        for words in text.parts():
            yield Event(data=_chunk(request, [{"text": words}]), pause=text.every)
    if not answer.hangs:
        yield Event(data=_chunk(request, _call_parts(answer), answer))


def refused(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error."""
    status = _STATUSES.get(refusal.status, "INTERNAL")
    return {"error": {"code": refusal.status, "message": refusal.message, "status": status}}


def _entries(content: Mapping[str, Any]) -> Iterator[Entry]:
    by_model = content.get("role") == "model"
    for part in content.get("parts", ()):
        match part:
            case {"functionCall": call}:
                yield ToolCallEntry(call.get("id", ""))
            case {"functionResponse": response}:
                answer = response.get("response", {})
                text = str(answer.get("output") or answer.get("error", ""))
                failed = "error" in answer or _FAILED.search(text) is not None
                yield ToolResultEntry(response.get("id", ""), text, is_error=failed)
            case {"text": str(text)} if by_model:
                yield ModelEntry(text)
            case {"text": str(text)} if not text.startswith("<session_context>"):
                yield PromptEntry(text)


def _call_parts(answer: ModelAnswer) -> list[dict[str, Any]]:
    if answer.call is None:
        return []
    call = answer.call
    return [{"functionCall": {"id": call.id, "name": call.tool, "args": dict(call.arguments)}}]


def _chunk(request: Request, parts: list[dict[str, Any]], ended: ModelAnswer | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if ended is None:
        return {"candidates": [candidate], "modelVersion": request.model}
    spent, produced = ended.usage.get("input_tokens", 0), ended.usage.get("output_tokens", 0)
    usage = {
        "promptTokenCount": spent,
        "candidatesTokenCount": produced,
        "totalTokenCount": spent + produced,
    }
    candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": request.model}
