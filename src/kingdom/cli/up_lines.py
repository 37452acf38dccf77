"""What the roles of a court and whoever runs them say, as the lines of one log."""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import structlog

from kingdom.clock import utc_now
from kingdom.court.text_logs import line
from kingdom.text import printable

_CALM = frozenset({"debug", "info"})
_OWN_FIELDS = frozenset({"event", "level", "at", "role"})
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that somebody said."""

    role: str
    text: str
    level: str
    at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return line(self.role, self.text, self.facts, at=self.at, level=self.level)

    @property
    def json(self) -> str:
        """Return it as one JSON object."""
        document = {"at": self.at, "level": self.level, "role": self.role, "event": self.text, **self.facts}
        return msgspec.json.encode(document, enc_hook=str).decode()


class Lines:
    """Hands every line on as text or JSON, and remembers the last that a person would want to see."""

    def __init__(self, tell: Callable[[Line], None]) -> None:
        self._tell = tell
        self.last: deque[Line] = deque(maxlen=_SHOWN)

    def hear(self, role: str, raw: bytes) -> None:
        """Take a line that the process of a role wrote: an entry of its log in JSON, or whatever else it said."""
        self._take(_read(role, raw.decode("utf-8", "replace")))

    def own(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Take a line of this process, as the last step of its structured log."""
        self._take(_entry("up", event))
        raise structlog.DropEvent

    def _take(self, said: Line) -> None:
        if said.level not in _CALM:
            self.last.append(said)
        self._tell(said)


def to_standard_error(*, json: bool) -> Callable[[Line], None]:
    """Return what writes lines where logs belong."""

    def tell(said: Line) -> None:
        sys.stderr.write(f"{said.json if json else printable(str(said))}\n")
        sys.stderr.flush()

    return tell


def _read(role: str, text: str) -> Line:
    try:
        return _entry(role, msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, ValueError):
        # A traceback of the interpreter, say.
        return Line(role=role, text=text, level="error", at=utc_now())


def _entry(role: str, document: Mapping[str, Any]) -> Line:
    facts = {key: value for key, value in document.items() if key not in _OWN_FIELDS}
    if document.get("role", role) != role:
        facts["about"] = document["role"]
    return Line(
        role=role,
        text=str(document.get("event", "")),
        level=str(document.get("level", "info")),
        at=msgspec.convert(document.get("at"), datetime | None) or utc_now(),
        facts=facts,
    )
