"""The wall-clock and processor time of one turn of a contestant."""

import time
from typing import Self

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """Elapsed seconds, and the processor seconds of a process."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Self:
        """Return the current clocks."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, began: "Turn") -> "Turn":
        return Turn(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)

    def to_json(self) -> str:
        """Return it as a line of JSON for another process."""
        return msgspec.json.encode(self).decode()
