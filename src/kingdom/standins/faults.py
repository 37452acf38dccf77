"""Faults on demand: errors and delays of real servers."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

FaultKind = Literal["refuse", "lose_answer", "truncate", "delay", "repeat", "reorder"]


class ServerFault(msgspec.Struct, kw_only=True):
    """A fault for the next `times` matching requests or pushes.

    `refuse` answers with `status` and does nothing. `lose_answer` handles the request and closes the connection.
    `truncate` handles the request and sends half of the answer. `delay` answers `seconds` later.

    A push is a message that the server sends on its own, such as a webhook. Its method is PUSH, and its path is its
    name. `repeat` sends a push twice, and `reorder` sends it after the next push.
    """

    kind: FaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0


class FaultQueue:
    """The faults that have not happened yet, in order."""

    def __init__(self) -> None:
        self._waiting: list[ServerFault] = []

    def add(self, faults: Sequence[ServerFault]) -> None:
        """Add faults."""
        self._waiting.extend(faults)

    def take(self, method: str, path: str) -> ServerFault | None:
        """Return the first fault that matches a request or push, or None. This uses up one of its `times`."""
        for fault in self._waiting:
            if fault.method in ("*", method) and fnmatchcase(path, fault.path):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None
