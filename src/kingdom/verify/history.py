"""The history of a trial: one append-only file of JSON lines per process. Each line is written immediately."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_SUFFIX = ".jsonl"


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action. `what` is its name, `at` its time by the monotonic clock of the machine in nanoseconds."""

    at: int
    process: str
    what: str
    facts: dict[str, Any] = {}


class History:
    """Writes the actions of one process. They stay in the file if the process dies."""

    def __init__(self, directory: Path, process: str) -> None:
        self.process = process
        self._file = os.open(directory / f"{process}{_SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        """Append one action."""
        entry = HistoryEntry(at=time.monotonic_ns(), process=self.process, what=what, facts=facts)
        os.write(self._file, msgspec.json.encode(entry) + b"\n")

    @contextlib.contextmanager
    def handling(self, **facts: Any) -> Iterator[None]:
        """Record the start and the end of a handler, even if it fails."""
        self.write("started", **facts)
        try:
            yield
        finally:
            self.write("finished", **facts)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_history(directory: Path) -> list[HistoryEntry]:
    """Return the actions of all processes in the order of time."""
    entries: list[HistoryEntry] = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        for line in path.read_bytes().splitlines():
            # The last line of a killed process may be incomplete.
            with contextlib.suppress(msgspec.DecodeError):
                entries.append(msgspec.json.decode(line, type=HistoryEntry))
    return sorted(entries, key=lambda entry: entry.at)
