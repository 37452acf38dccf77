"""The model APIs of the vendors: allowed requests, forwarded headers, credentials and errors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kingdom.soldiers.sandbox import prices
from kingdom.soldiers.sandbox.prices import Bill, Price, Tokens

# Agents do not retry after this status.
PAYMENT_REQUIRED = 402


class Vendor(StrEnum):
    """The vendor whose API a model speaks."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The address of a vendor's model, the key that the proxy adds, and the operator's own prices."""

    vendor: Vendor
    url: str
    key: str = field(repr=False)
    prices: Mapping[str, Price] = field(default_factory=dict)

    @property
    def credentials(self) -> dict[str, str]:
        """Return the headers that carry the key."""
        name, form = _CREDENTIALS[self.vendor]
        return {name: form.format(self.key)}

    def bill(self, tokens: Tokens, *models: str) -> Bill:
        """Return the cost of tokens, at the price of the first model whose price is known."""
        return _PRICES[self.vendor].bill(tokens, *models, own=self.prices)


_CREDENTIALS = {
    Vendor.ANTHROPIC: ("x-api-key", "{}"),
    Vendor.OPENAI: ("authorization", "Bearer {}"),
    Vendor.GEMINI: ("x-goog-api-key", "{}"),
}
_PRICES = {
    Vendor.ANTHROPIC: prices.ANTHROPIC,
    Vendor.OPENAI: prices.OPENAI,
    Vendor.GEMINI: prices.GEMINI,
}
_ALLOWED = {
    Vendor.ANTHROPIC: (("POST", r"/v1/messages"), ("POST", r"/v1/messages/count_tokens")),
    Vendor.OPENAI: (
        *(("POST", r"/v1/responses"), ("POST", r"/v1/chat/completions")),
        *(("GET", r"/v1/models"), ("GET", r"/v1/models/[\w.-]+")),
    ),
    Vendor.GEMINI: (("POST", r"/v1(beta)?/models/[\w.-]+:(generateContent|streamGenerateContent|countTokens)"),),
}
_CHAT = "/v1/chat/completions"
_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "maxOutputTokens")
# This limit is assumed if the request sets none.
_OUTPUT_MAX = 32_000
_FREE = re.compile(r".*(count_tokens|countTokens)")
_GEMINI_MODEL = re.compile(r".*/models/(?P<model>[^:]+):(?P<verb>.*)")
# Other headers and parameters are dropped, because one of them might select another account.
_PARAMETERS = frozenset({"alt", "beta"})
_REQUEST_HEADERS = re.compile(
    r"accept|content-type|user-agent|anthropic-(version|beta)|openai-beta|originator|session_id|conversation_id"
    r"|x-app|x-goog-api-client|x-(claude|codex|stainless)-[\w-]+"
)
_RESPONSE_HEADERS = re.compile(
    r"content-type|content-encoding|retry-after|request-id|x-request-id|x-should-retry|openai-processing-ms"
    r"|(anthropic|x)-ratelimit-[\w-]+"
)


def is_allowed_request(vendor: Vendor, method: str, path: str) -> bool:
    """Return whether a request to the model of a vendor is allowed."""
    return any(method == allowed and re.fullmatch(pattern, path) for allowed, pattern in _ALLOWED[vendor])


def forwards_request_header(name: str) -> bool:
    """Return whether a header of the agent is forwarded to the vendor."""
    return _REQUEST_HEADERS.fullmatch(name.lower()) is not None


def forwards_response_header(name: str) -> bool:
    """Return whether a header of the vendor is forwarded to the agent."""
    return _RESPONSE_HEADERS.fullmatch(name.lower()) is not None


def forwards_parameter(name: str) -> bool:
    """Return whether a query parameter is forwarded to the vendor."""
    return name in _PARAMETERS


def is_charged(method: str, path: str) -> bool:
    """Return whether the vendor charges for a request."""
    return method == "POST" and _FREE.fullmatch(path) is None


def requested_model(path: str, document: Mapping[str, Any]) -> str:
    """Return the name of the requested model."""
    named = _GEMINI_MODEL.fullmatch(path)
    return named["model"] if named else str(document.get("model") or "")


def is_streamed(path: str, document: Mapping[str, Any]) -> bool:
    """Return whether the vendor streams its answer. A streamed answer ends when the client disconnects."""
    named = _GEMINI_MODEL.fullmatch(path)
    return named["verb"].startswith("stream") if named else document.get("stream") is True


def max_output_tokens(document: Mapping[str, Any]) -> int:
    """Return the highest number of tokens that the answer may have."""
    generation = document.get("generationConfig")
    places = (document, generation if isinstance(generation, Mapping) else {})
    limits = [place.get(name) for place in places for name in _OUTPUT_LIMITS]
    return max((limit for limit in limits if isinstance(limit, int) and limit > 0), default=_OUTPUT_MAX)


def with_usage_reporting(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a request whose answer includes the usage. Streams of Chat Completions omit it by default."""
    if path != _CHAT or not document.get("stream"):
        return document
    options = document.get("stream_options")
    return {**document, "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True}}


def payment_error(vendor: Vendor, message: str) -> dict[str, Any]:
    """Return the error document that a vendor sends when the budget is spent."""
    if vendor is Vendor.ANTHROPIC:
        return {"type": "error", "error": {"type": "billing_error", "message": message}}
    if vendor is Vendor.OPENAI:
        kind = "insufficient_quota"
        return {"error": {"message": message, "type": kind, "param": None, "code": kind}}
    return {"error": {"code": PAYMENT_REQUIRED, "message": message, "status": "FAILED_PRECONDITION"}}
