"""The log lines of all roles and of `kingdom up` itself as one log."""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import structlog

from kingdom.clock import utc_now
from kingdom.court.text_logs import format_line
from kingdom.text import printable

_ROUTINE_LEVELS = frozenset({"debug", "info"})
_OWN_FIELDS = frozenset({"event", "level", "at", "role"})
_LINES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLogLine:
    """A log line of a role; `facts` has its other fields."""

    role: str
    text: str
    level: str
    at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return format_line(self.role, self.text, self.facts, at=self.at, level=self.level)

    @property
    def json(self) -> str:
        """Return the line as a JSON object."""
        document = {"at": self.at, "level": self.level, "role": self.role, "event": self.text, **self.facts}
        return msgspec.json.encode(document, enc_hook=str).decode()


class RoleLog:
    """Writes every line, and keeps the last warnings and errors for the screen."""

    def __init__(self, write: Callable[[RoleLogLine], None]) -> None:
        self._write = write
        self.last: deque[RoleLogLine] = deque(maxlen=_LINES_SHOWN)

    def add_role_output(self, role: str, raw: bytes) -> None:
        """Add a line that the process of a role wrote: a log entry in JSON, or any other text."""
        self._add(_parse(role, raw.decode("utf-8", "replace")))

    def process_own_event(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Add a log event of this process. As the last log processor, this drops the event afterwards."""
        self._add(_to_line("up", event))
        raise structlog.DropEvent

    def _add(self, added: RoleLogLine) -> None:
        if added.level not in _ROUTINE_LEVELS:
            self.last.append(added)
        self._write(added)


def write_to_stderr(*, json: bool) -> Callable[[RoleLogLine], None]:
    """Return a function that writes lines to standard error as text or JSON."""

    def write(written: RoleLogLine) -> None:
        sys.stderr.write(f"{written.json if json else printable(str(written))}\n")
        sys.stderr.flush()

    return write


def _parse(role: str, text: str) -> RoleLogLine:
    try:
        return _to_line(role, msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, ValueError):
        # The text is not a log entry, for example a traceback.
        return RoleLogLine(role=role, text=text, level="error", at=utc_now())


def _to_line(role: str, document: Mapping[str, Any]) -> RoleLogLine:
    facts = {key: value for key, value in document.items() if key not in _OWN_FIELDS}
    if document.get("role", role) != role:
        facts["about"] = document["role"]
    return RoleLogLine(
        role=role,
        text=str(document.get("event", "")),
        level=str(document.get("level", "info")),
        at=msgspec.convert(document.get("at"), datetime | None) or utc_now(),
        facts=facts,
    )
