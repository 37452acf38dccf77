"""What a vendor says that an answer of its model has used up, read while the answer passes. Pure.

Answers come whole, as one JSON document or a list of them, or as a stream of server-sent events.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from kingdom.soldiers.sandbox.prices import Tokens
from kingdom.soldiers.sandbox.vendors import Vendor

# A token of text has seldom fewer bytes; so what is guessed is rather too much.
BYTES_PER_TOKEN = 2
# No answer is longer, and no event of one; what is longer is not kept to be read.
_BYTES_MAX = 4 << 20
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_JSON_STARTS = b"{["
_OTHER_FIELDS = (b"event:", b"id:", b"retry:", b":")


class UsageReader:
    """Reads one answer in whatever pieces it comes.

    `model` is the name that the vendor gives it. `is_final` tells that `tokens` are all that will be charged; until
    then they are what the vendor has told so far, with a guess at what the model has written.
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
        self._fast = False
        self._text_bytes = 0
        self._unread_bytes = 0

    @property
    def tokens(self) -> Tokens:
        """Return what the answer has used up, as far as it is known."""
        tokens = _TOKENS[self._vendor](self._usage)
        searches = tokens.searches + self._searches
        guessed = 0 if self.is_final else (self._text_bytes + self._unread_bytes) // BYTES_PER_TOKEN
        fast = tokens.fast or self._fast
        return replace(tokens, searches=searches, output=max(tokens.output, guessed), fast=fast)

    def feed(self, chunk: bytes) -> None:
        """Take in the next piece of the answer."""
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
        """Take in that nothing more comes."""
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
        except _UNREADABLE:
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
            self._usage = _merged(self._usage, usage)
            self._searches = max(self._searches, _searches(inner))
            self.is_final = self._is_final_usage(document)

    def _is_final_usage(self, document: Mapping[str, Any]) -> bool:
        """Tell whether the usage in a document is all that there will be."""
        if self._vendor is Vendor.ANTHROPIC:
            return document.get("type") != "message_start"
        if self._vendor is Vendor.OPENAI:
            return True
        candidates = document.get("candidates")
        ended = [each.get("finishReason") for each in _documents(candidates)]
        # A prompt that is blocked has no candidates.
        return any(ended) or not ended


def _merged(known: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return usage with what was told later; what is counted never falls, though some leave out what they said."""
    later = {
        name: value for name, value in told.items() if value is not None and _count(known, name) <= _count(told, name)
    }
    return {**known, **later}


def _length(value: Any) -> int:
    """Return how many bytes all the texts in a value have."""
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
    """Return how often the vendor has searched the web, where its usage does not tell."""
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
    """Return the tokens of Responses, or of Chat Completions, which name them otherwise."""
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
