"""Text logs for people: `logs/system.log`, `logs/tasks.log` and `logs/metrics.log`.

A line is `2026-02-07T10:00:00.000Z info king: text key=value`: time, level, actor, text and fields. A value that is not
a plain word is written as JSON, so every line can be parsed.
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

# All roles write system.log, and the Chamberlain writes metrics.log. King and Generals write all their lines to
# tasks.log, and other roles their lines about events and assignments.
SYSTEM, TASKS, METRICS = "system", "tasks", "metrics"
NAMES = (SYSTEM, TASKS, METRICS)
OLD = ".old"
_PLAIN = re.compile(r"[^\s\"=]+")
# Longer lines are cut.
_LINE_BYTES_MAX = 64 << 10
_ABOUT_TASKS = ("[EVENT] ", "[TASK] ")
_OWN_FIELDS = frozenset({"event", "level", "at", "exc_info"})


def log_path(directory: Path, name: str) -> Path:
    """Return the file of a log below the store directory."""
    return directory / "logs" / f"{name}.log"


def format_line(actor: str, text: str, facts: Mapping[str, Any], *, at: datetime, level: str) -> str:
    """Return one line of a log."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    words = [f"{key}={_value(value)}" for key, value in facts.items()]
    return " ".join([f"{moment} {level} {actor}: {_one_line(text)}", *words])


class TextLog:
    """Appends lines to a file that other processes append to as well. Each line is one write, so lines do not mix.

    After a rotation, the next line goes to the new file. Safe to use from any thread.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file: int | None = None

    def write(self, actor: str, text: str, facts: Mapping[str, Any] | None = None, *, level: str = "info") -> None:
        """Append a line. A failure is ignored."""
        encoded_line = format_line(actor, text, facts or {}, at=self._clock(), level=level).encode("utf-8", "replace")
        with self._lock, suppress(OSError):
            os.write(self._open(), encoded_line[:_LINE_BYTES_MAX] + b"\n")

    def close(self) -> None:
        """Close the file. The next line opens it again."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> int:
        """Return the descriptor of the current log file, opening it if needed."""
        if self._file is not None and _is_at(self._file, self.path):
            return self._file
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file


def tee(log: TextLog, actor: str, *, only_tasks: bool = False) -> structlog.typing.Processor:
    """Return a structlog processor that also writes each line to a text log.

    With `only_tasks`, it writes only the lines about events and assignments.
    """

    def write(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        text = str(event.get("event", ""))
        if text.startswith(_ABOUT_TASKS) or not only_tasks:
            facts = {key: value for key, value in event.items() if key not in _OWN_FIELDS}
            log.write(actor, text, facts, level=str(event.get("level", "info")))
        return event

    return write


def rotate(path: Path, max_bytes: int) -> int | None:
    """If a log is too large, rename it to `.old`, replace an earlier `.old`, and return its size.

    No line is lost: writers open the new file with their next line. Several processes may rotate at once.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # The lock and the check make sure that only the current file is renamed, and only once.
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size <= max_bytes or not _is_at(file, path):
            return None
        path.rename(path.with_name(path.name + OLD))
    finally:
        os.close(file)
    return size


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
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
    # Escape everything unprintable, so that it can neither control a terminal nor start a line.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in encoded)
