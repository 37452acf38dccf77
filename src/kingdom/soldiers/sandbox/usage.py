"""Read the usage that a vendor reports in an answer while the answer passes through. This module does no I/O.

An answer is one JSON document, a list of documents, or a stream of server-sent events.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from kingdom.soldiers.sandbox.prices import Tokens
from kingdom.soldiers.sandbox.vendors import Vendor
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

# Tokens are rarely shorter, so an estimate is too high rather than too low.
BYTES_PER_TOKEN = 2
# The longest answer or event that is kept for reading.
_BYTES_MAX = 4 << 20
_JSON_STARTS = b"{["
_OTHER_FIELDS = (b"event:", b"id:", b"retry:", b":")


class UsageReader:
    """Reads the usage from one answer, fed in pieces of any size.

    `model` is the model name in the answer. Once `is_final` is set, `tokens` is the whole usage. Before that, it is the
    usage reported so far, with an estimate of the output.
    """

    def __init__(self, vendor: Vendor) -> None:
        self.model = ""
        self.is_final = False
        self._vendor = vendor
        self._is_json: bool | None = None
        self._kept = bytearray()
        self._data: list[bytes] = []
        self._too_long = False
        self._usage: dict[str, Any] = {}
        self._searches = 0
        # Whether the vendor used its faster and more expensive service tier.
        self._fast = False
        self._text_bytes = 0
        self._unread_bytes = 0

    @property
    def tokens(self) -> Tokens:
        """Return the usage as far as it is known."""
        tokens = _TOKENS[self._vendor](self._usage)
        searches = tokens.searches + self._searches
        guessed = 0 if self.is_final else (self._text_bytes + self._unread_bytes) // BYTES_PER_TOKEN
        fast = tokens.fast or self._fast
        return replace(tokens, searches=searches, output=max(tokens.output, guessed), fast=fast)

    def feed(self, chunk: bytes) -> None:
        """Read the next piece of the answer."""
        if self._is_json is None and (begun := chunk.lstrip()):
            self._is_json = begun[:1] in _JSON_STARTS
        if self._is_json:
            self._keep(chunk)
            return
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._keep(line)
            self._finish_line()
        self._keep(rest)

    def close(self) -> None:
        """Finish reading after the last piece."""
        if self._is_json:
            self._read(bytes(self._kept))
            self._kept.clear()
        else:
            self._finish_line()
            self._finish_event()

    def _keep(self, piece: bytes) -> None:
        self._too_long = self._too_long or len(self._kept) + sum(map(len, self._data)) + len(piece) > _BYTES_MAX
        if self._too_long:
            self._unread_bytes += len(self._kept) + len(piece)
            self._kept.clear()
        else:
            self._kept += piece

    def _finish_line(self) -> None:
        line = bytes(self._kept).removesuffix(b"\r")
        self._kept.clear()
        if self._too_long:
            self._too_long = False
            self._data.clear()
        elif not line:
            self._finish_event()
        elif line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:"))
        elif not line.startswith(_OTHER_FIELDS):
            self._unread_bytes += len(line)

    def _finish_event(self) -> None:
        if self._data:
            self._read(b"\n".join(self._data))
            self._data.clear()

    def _read(self, text: bytes) -> None:
        try:
            found = msgspec.json.decode(text)
        except UNREADABLE_JSON:
            if text.strip() != b"[DONE]":
                self._unread_bytes += len(text)
            return
        for document in found if isinstance(found, list) else [found]:
            if isinstance(document, Mapping):
                self._read_document(document)

    def _read_document(self, document: Mapping[str, Any]) -> None:
        self._text_bytes += sum(_length(document.get(name)) for name in ("delta", "choices", "candidates", "content"))
        inner = next((document[name] for name in ("message", "response") if name in document), document)
        if not isinstance(inner, Mapping):
            return
        model = inner.get("model") or inner.get("modelVersion")
        self.model = model if isinstance(model, str) else self.model
        self._fast = self._fast or (self._vendor is Vendor.OPENAI and inner.get("service_tier") == "priority")
        usage = inner.get("usage") or inner.get("usageMetadata")
        if isinstance(usage, Mapping):
            self._usage = _merge(self._usage, usage)
            self._searches = max(self._searches, _searches(inner))
            self.is_final = self._is_final_usage(document)

    def _is_final_usage(self, document: Mapping[str, Any]) -> bool:
        """Return whether the usage in a document is final."""
        if self._vendor is Vendor.ANTHROPIC:
            return document.get("type") != "message_start"
        if self._vendor is Vendor.OPENAI:
            return True
        candidates = document.get("candidates")
        ended = [each.get("finishReason") for each in _documents(candidates)]
        # The answer to a blocked prompt has no candidates.
        return any(ended) or not ended


def _merge(known: Mapping[str, Any], latest: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a later usage into a known usage. A known count stays if the later one is smaller or missing."""
    later = {
        name: value
        for name, value in latest.items()
        if value is not None and _count(known, name) <= _count(latest, name)
    }
    return {**known, **later}


def _length(value: Any) -> int:
    """Return the total length of all texts in a value, in bytes."""
    match value:
        case str():
            return len(value.encode(errors="replace"))
        case Mapping():
            return sum(map(_length, value.values()))
        case list():
            return sum(map(_length, value))
    return 0


def _documents(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _searches(answer: Mapping[str, Any]) -> int:
    """Return the number of web searches in an answer, for vendors whose usage does not count them."""
    calls = sum(item.get("type") == "web_search_call" for item in _documents(answer.get("output")))
    return calls or int(any(each.get("groundingMetadata") for each in _documents(answer.get("candidates"))))


def _count(usage: Any, *path: str) -> int:
    for name in path:
        usage = usage.get(name) if isinstance(usage, Mapping) else None
    return max(usage, 0) if isinstance(usage, int) else 0


def _anthropic(usage: Mapping[str, Any]) -> Tokens:
    written = _count(usage, "cache_creation_input_tokens")
    for_an_hour = min(written, _count(usage, "cache_creation", "ephemeral_1h_input_tokens"))
    return Tokens(
        input=_count(usage, "input_tokens"),
        output=_count(usage, "output_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens"),
        cache_write=written - for_an_hour,
        cache_write_hour=for_an_hour,
        searches=_count(usage, "server_tool_use", "web_search_requests"),
        fast=usage.get("speed") == "fast",
    )


def _openai(usage: Mapping[str, Any]) -> Tokens:
    """Return the tokens of the Responses API or of Chat Completions, which use different field names."""
    prompt = _count(usage, "input_tokens") or _count(usage, "prompt_tokens")
    cached = _count(usage, "input_tokens_details", "cached_tokens") or _count(
        usage, "prompt_tokens_details", "cached_tokens"
    )
    output = _count(usage, "output_tokens") or _count(usage, "completion_tokens")
    return Tokens(input=max(0, prompt - cached), cache_read=min(prompt, cached), output=output)


def _gemini(usage: Mapping[str, Any]) -> Tokens:
    prompt = _count(usage, "promptTokenCount")
    cached = min(prompt, _count(usage, "cachedContentTokenCount"))
    return Tokens(
        input=prompt - cached + _count(usage, "toolUsePromptTokenCount"),
        cache_read=cached,
        output=_count(usage, "candidatesTokenCount") + _count(usage, "thoughtsTokenCount"),
    )


_TOKENS = {Vendor.ANTHROPIC: _anthropic, Vendor.OPENAI: _openai, Vendor.GEMINI: _gemini}
