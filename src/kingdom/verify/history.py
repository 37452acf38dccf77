"""The history of a trial: one append-only file of JSON lines per process. Each line is written immediately."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
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


def with_stored_positions(
    history: Sequence[HistoryEntry], carried: Collection[str], positions: Mapping[tuple[str, str], int]
) -> list[HistoryEntry]:
    """Replace the positions of events of carried streams by those in the store.

    Each process numbers the events that it reads from a topic. `positions` has the stored ones by stream and event.
    """
    stored: dict[tuple[str, int], int] = {}
    changed = []
    for entry in history:
        facts = entry.facts
        if entry.what == "claimed" and facts["stream"] in carried:
            events = [
                [positions.get((facts["stream"], event), position), event, *rest]
                for position, event, *rest in facts["events"]
            ]
            stored |= {(entry.process, old[0]): new[0] for old, new in zip(facts["events"], events, strict=True)}
            facts = {**facts, "events": events}
        elif "outcomes" in facts:
            places = {position: stored.get((entry.process, int(position)), position) for position in facts["outcomes"]}
            facts = {**facts, "outcomes": {str(places[old]): outcome for old, outcome in facts["outcomes"].items()}}
        changed.append(HistoryEntry(at=entry.at, process=entry.process, what=entry.what, facts=facts))
    return changed


def read_history(directory: Path) -> list[HistoryEntry]:
    """Return the actions of all processes in the order of time."""
    entries: list[HistoryEntry] = []
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        for line in path.read_bytes().splitlines():
            # The last line of a killed process may be incomplete.
            with contextlib.suppress(msgspec.DecodeError):
                entries.append(msgspec.json.decode(line, type=HistoryEntry))
    return sorted(entries, key=lambda entry: entry.at)
