"""What the requests of all vendors have in common: a conversation, and the tools that the model may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompted:
    """A person, or the program in their name, said something."""

    text: str


@dataclass(frozen=True, slots=True)
class Spoke:
    """The model said something."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The model called a tool."""

    id: str


@dataclass(frozen=True, slots=True)
class Returned:
    """A tool answered."""

    id: str
    text: str = ""
    is_error: bool = False


Entry = Prompted | Spoke | Called | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an agent asks of the model; `tools` are those on offer by their names, `house` how tools of ours are named.

    `folder` is where the agent works, as far as the request tells.
    """

    model: str
    stream: bool
    session: str
    entries: Sequence[Entry]
    tools: Mapping[str, Any] = field(default_factory=dict)
    house: str = "mcp__kingdom__{}"
    call_prefix: str = "call_"
    folder: str = ""


def texts_of(content: Any) -> list[str]:
    """Return the texts in the content of a message, which is a text or a list of parts."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
