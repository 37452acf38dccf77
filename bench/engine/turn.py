"""What one turn of a contestant took: the time on the wall, and that of its processor."""

import time
from typing import Self

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """Seconds that passed, and seconds that a process has worked in them."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Self:
        """Return where the clocks stand."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, began: "Turn") -> "Turn":
        return Turn(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)

    def to_json(self) -> str:
        """Return it as a line that another process reads."""
        return msgspec.json.encode(self).decode()
