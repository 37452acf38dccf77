"""The response of the model to one request, in a form for the API of any vendor."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """A text that the model says, with a pause of `every` seconds after each word."""

    words: str
    every: float = 0.0

    def parts(self) -> list[str]:
        """Return the pieces in which a stream brings the text."""
        return re.findall(r"\S+\s*|\s+", self.words) if self.every else [self.words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call of the model. Its id contains the number of the step in the script."""

    id: str
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of the API."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """One response. With `hangs` it stalls after its texts, with `drops` the stream breaks after its first event."""

    texts: tuple[Text, ...] = ()
    call: Call | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    delay: float = 0.0
    hangs: bool = False
    drops: bool = False
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream, and how long to wait after it."""

    data: Any
    name: str = ""
    pause: float = 0.0
