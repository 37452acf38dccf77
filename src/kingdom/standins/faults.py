"""Faults on demand: errors and delays of real servers."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

FaultKind = Literal["refuse", "lose_answer", "truncate", "delay", "repeat", "reorder"]


class ServerFault(msgspec.Struct, kw_only=True):
    """A fault for the next `times` matching requests or pushes.

    `refuse` answers with `status` and does nothing. `lose_answer` handles the request and closes the connection.
    `truncate` handles it and sends half of the answer. `delay` answers `seconds` later. For pushes of the server
    `repeat` sends a push twice and `reorder` sends it after the next one; `path` is then the name of the push.
    """

    kind: FaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0


class FaultQueue:
    """The faults to come, in order."""

    def __init__(self) -> None:
        self._waiting: list[ServerFault] = []

    def add(self, faults: Sequence[ServerFault]) -> None:
        """Add faults."""
        self._waiting.extend(faults)

    def take(self, method: str, path: str) -> ServerFault | None:
        """Return the fault for a request or push, and count it."""
        for fault in self._waiting:
            if fault.method in ("*", method) and fnmatchcase(path, fault.path):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None
