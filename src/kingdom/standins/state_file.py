"""What a stand-in knows, in one JSON file: killed at any moment, it goes on where it was."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class StateFile:
    """The state of a stand-in and every call that changed it; a change is on the disk before its caller is answered."""

    def __init__(self, path: Path, empty: dict[str, Any]) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"state": empty, "calls": []}
        self.state: dict[str, Any] = kept["state"]
        self.calls: list[dict[str, Any]] = kept["calls"]

    @contextmanager
    def change(self, call: str = "", **about: Any) -> Iterator[dict[str, Any]]:
        """Change the state and write down which call did it; a change that raises is forgotten."""
        before = json.dumps(self.state)
        try:
            yield self.state
        except BaseException:
            self.state = json.loads(before)
            raise
        if call:
            self.calls.append({"call": call, "at": datetime.now(UTC).isoformat(), **about})
        self._write()

    def count(self, call: str, **about: Any) -> int:
        """Return how often a call was carried out."""
        return sum(made["call"] == call and about.items() <= made.items() for made in self.calls)

    def next_number(self, name: str) -> int:
        """Return the next number of a sequence; call it inside a change."""
        numbers = self.state.setdefault("numbers", {})
        numbers[name] = number = int(numbers.get(name, 0)) + 1
        return number

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"state": self.state, "calls": self.calls}, indent=1))
        os.replace(unfinished, self._path)  # noqa: PTH105 - the atomic step, by its own name
