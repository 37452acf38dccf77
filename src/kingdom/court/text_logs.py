"""Logs for people, one line of text each: `logs/system.log`, `logs/tasks.log` and `logs/metrics.log`.

A line is `2026-02-07T10:00:00.000Z info king: text key=value`: when, how bad, who, what, and the facts. A value that is
no plain word is written as JSON, so that a line stays one line and can be taken apart again.
"""

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kingdom.clock import utc_now
from kingdom.text import printable

# All roles write the first, King and Generals the second, the Chamberlain the third.
SYSTEM, TASKS, METRICS = "system", "tasks", "metrics"
NAMES = (SYSTEM, TASKS, METRICS)
OLD = ".old"
_PLAIN = re.compile(r"[^\s\"=]+")
# A reader shall not meet a line that fills his screen for minutes.
_LINE_BYTES_MAX = 64 << 10
_OWN_FIELDS = frozenset({"event", "level", "at", "exc_info"})


def path_of(directory: Path, name: str) -> Path:
    """Return the file of a log below the directory of the house."""
    return directory / "logs" / f"{name}.log"


def line(actor: str, text: str, facts: Mapping[str, Any], *, at: datetime, level: str) -> str:
    """Return one line of a log."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    words = [f"{key}={_value(value)}" for key, value in facts.items()]
    return " ".join([f"{moment} {level} {actor}: {_one_line(text)}", *words])


class TextLog:
    """Appends lines to a file that others append to as well; each line is one write, so that none is torn.

    After a rotation the next line goes to the new file. Usable from any thread.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file: int | None = None

    def write(self, actor: str, text: str, facts: Mapping[str, Any] | None = None, *, level: str = "info") -> None:
        """Append a line; where that cannot be done, the work goes on without it."""
        said = line(actor, text, facts or {}, at=self._clock(), level=level).encode("utf-8", "replace")
        with self._lock, suppress(OSError):
            os.write(self._open(), said[:_LINE_BYTES_MAX] + b"\n")

    def close(self) -> None:
        """Let go of the file; the next line opens it again."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> int:
        """Return the file that has the name of the log now."""
        if self._file is not None and _is_at(self._file, self.path):
            return self._file
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file


def tee(log: TextLog, actor: str) -> structlog.typing.Processor:
    """Return a step for the structured logs of a process that writes each line to a log for people too."""

    def write(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        facts = {key: value for key, value in event.items() if key not in _OWN_FIELDS}
        log.write(actor, str(event.get("event", "")), facts, level=str(event.get("level", "info")))
        return event

    return write


def rotate(path: Path, max_bytes: int) -> int | None:
    """Put a log that has become too large aside as `.old`, in place of an earlier one; returns its size if so.

    Nobody's line is lost: who has the file open finds a new one with the next line. Several may rotate at once.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Only who holds the very file that has the name may take the name from it.
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size <= max_bytes or not _is_at(file, path):
            return None
        path.rename(path.with_name(path.name + OLD))
    finally:
        os.close(file)
    return size


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _one_line(text: str) -> str:
    return printable(text.replace("\\", "\\\\").replace("\n", "\\n"))


def _value(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and _PLAIN.fullmatch(value):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    encoded = msgspec.json.encode(value, enc_hook=str).decode()
    # Nothing steers a screen or begins a line, and it can still be taken apart.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in encoded)
