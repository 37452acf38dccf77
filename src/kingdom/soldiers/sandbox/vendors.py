"""What an agent may ask of the model of each vendor, and how the vendor knows who asks."""

import re
from dataclasses import dataclass, field
from enum import StrEnum


class Vendor(StrEnum):
    """Whose protocol a model speaks."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where the model of a vendor is reached, and the key that is added on the way there."""

    vendor: Vendor
    url: str
    key: str = field(repr=False)

    @property
    def credentials(self) -> dict[str, str]:
        """Return the headers that carry the key."""
        name, form = _CREDENTIALS[self.vendor]
        return {name: form.format(self.key)}


_CREDENTIALS = {
    Vendor.ANTHROPIC: ("x-api-key", "{}"),
    Vendor.OPENAI: ("authorization", "Bearer {}"),
    Vendor.GEMINI: ("x-goog-api-key", "{}"),
}
_ALLOWED = {
    Vendor.ANTHROPIC: (("POST", r"/v1/messages"), ("POST", r"/v1/messages/count_tokens")),
    Vendor.OPENAI: (
        *(("POST", r"/v1/responses"), ("POST", r"/v1/chat/completions")),
        *(("GET", r"/v1/models"), ("GET", r"/v1/models/[\w.-]+")),
    ),
    Vendor.GEMINI: (("POST", r"/v1(beta)?/models/[\w.-]+:(generateContent|streamGenerateContent|countTokens)"),),
}
# What else travels is neither needed nor known: a header or a parameter may choose another account.
_PARAMETERS = frozenset({"alt", "beta"})
_ASKED_WITH = re.compile(
    r"accept|content-type|user-agent|anthropic-(version|beta)|openai-beta|originator|session_id|conversation_id"
    r"|x-app|x-goog-api-client|x-(claude|codex|stainless)-[\w-]+"
)
_ANSWERED_WITH = re.compile(
    r"content-type|content-encoding|retry-after|request-id|x-request-id|x-should-retry|openai-processing-ms"
    r"|(anthropic|x)-ratelimit-[\w-]+"
)


def allows(vendor: Vendor, method: str, path: str) -> bool:
    """Tell whether an agent may ask this of the model of a vendor."""
    return any(method == allowed and re.fullmatch(pattern, path) for allowed, pattern in _ALLOWED[vendor])


def asked_with(name: str) -> bool:
    """Tell whether a header of an agent goes on to the vendor."""
    return _ASKED_WITH.fullmatch(name.lower()) is not None


def answered_with(name: str) -> bool:
    """Tell whether a header of the vendor goes on to the agent."""
    return _ANSWERED_WITH.fullmatch(name.lower()) is not None


def asked_by(name: str) -> bool:
    """Tell whether a parameter of the address goes on to the vendor."""
    return name in _PARAMETERS
