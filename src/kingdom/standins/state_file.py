"""The state of a stand-in in one JSON file, which survives a kill at any moment."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class StateFile:
    """The state of a stand-in, and its recorded calls. A change is on disk before its caller gets an answer."""

    def __init__(self, path: Path, empty: dict[str, Any]) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"state": empty, "calls": []}
        self.state: dict[str, Any] = content["state"]
        self.calls: list[dict[str, Any]] = content["calls"]

    @contextmanager
    def change(self, call: str = "", **details: Any) -> Iterator[dict[str, Any]]:
        """Change the state and record the call. An exception in the block undoes the change."""
        before = json.dumps(self.state)
        try:
            yield self.state
        except BaseException:
            self.state = json.loads(before)
            raise
        if call:
            self.calls.append({"call": call, "at": datetime.now(UTC).isoformat(), **details})
        self._write()

    def count(self, call: str, **details: Any) -> int:
        """Return how often a call was executed."""
        return sum(made["call"] == call and details.items() <= made.items() for made in self.calls)

    def next_number(self, name: str) -> int:
        """Return the next number of a sequence. Call it inside `StateFile.change`."""
        numbers = self.state.setdefault("numbers", {})
        numbers[name] = number = int(numbers.get(name, 0)) + 1
        return number

    def _write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"state": self.state, "calls": self.calls}, indent=1))
        temporary.replace(self._path)
