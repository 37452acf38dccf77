"""Trouble on demand: what real servers do on a bad day."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

FaultKind = Literal["refuse", "lose_answer", "truncate", "delay", "repeat", "reorder"]


class ServerFault(msgspec.Struct, kw_only=True):
    """One kind of trouble for the next `times` requests or pushes that it fits.

    `refuse` answers with `status` and does nothing; `lose_answer` does what is asked and hangs up; `truncate` does it
    and sends half of its answer; `delay` answers `seconds` later. For what the server pushes, `repeat` sends it twice
    and `reorder` sends it behind the next one; there `path` is the name of what is pushed.
    """

    kind: FaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0


class FaultQueue:
    """The trouble that is still to come, in order."""

    def __init__(self) -> None:
        self._waiting: list[ServerFault] = []

    def add(self, faults: Sequence[ServerFault]) -> None:
        """Have more trouble."""
        self._waiting.extend(faults)

    def take(self, method: str, path: str) -> ServerFault | None:
        """Return the trouble that meets a request or a push, which has then happened once."""
        for fault in self._waiting:
            if fault.method in ("*", method) and fnmatchcase(path, fault.path):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None
