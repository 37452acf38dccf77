"""The history of a trial: one append-only file of JSON lines per process, each written before its writer goes on."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_SUFFIX = ".jsonl"


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action; `at` is the host's monotonic clock in nanoseconds, the same for all processes."""

    at: int
    process: str
    what: str
    facts: dict[str, Any] = {}


class History:
    """Writes the actions of one process; what was written survives its death."""

    def __init__(self, directory: Path, process: str) -> None:
        self.process = process
        self._file = os.open(directory / f"{process}{_SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        """Append one action."""
        entry = HistoryEntry(at=time.monotonic_ns(), process=self.process, what=what, facts=facts)
        os.write(self._file, msgspec.json.encode(entry) + b"\n")

    @contextlib.contextmanager
    def handling(self, **facts: Any) -> Iterator[None]:
        """Write down when a handler begins and when it ends, however that is."""
        self.write("started", **facts)
        try:
            yield
        finally:
            self.write("finished", **facts)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_history(directory: Path) -> list[HistoryEntry]:
    """Return the actions of all processes in the order of time."""
    entries: list[HistoryEntry] = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        for line in path.read_bytes().splitlines():
            # The last line of a killed process may be torn.
            with contextlib.suppress(msgspec.DecodeError):
                entries.append(msgspec.json.decode(line, type=HistoryEntry))
    return sorted(entries, key=lambda entry: entry.at)
