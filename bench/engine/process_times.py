"""The wall-clock time and the processor time that the engine or dbos needs for one measurement."""

import time
from typing import Self

import msgspec


class ProcessTimes(msgspec.Struct, frozen=True):
    """Elapsed and processor seconds of this process: a reading of both clocks, or the difference of two readings."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Self:
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, began: "ProcessTimes") -> "ProcessTimes":
        return ProcessTimes(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)

    def to_json(self) -> str:
        """Return it as a line of JSON for another process."""
        return msgspec.json.encode(self).decode()
