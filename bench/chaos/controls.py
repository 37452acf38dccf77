"""Numbers in a memory-mapped file, by which a bench controls the running processes under test."""

import mmap
import struct
import time
from collections.abc import Iterable
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace

from bench.chaos.variants import replace
from kingdom import clock

_ROLES = ("worker", "publisher", "steady", "courier")
_MEMBERS_MAX = 8
_NUMBER = struct.Struct("d")
_CLOCKS = len(_ROLES) * _MEMBERS_MAX
_NAMES = ("disk_error", "checkpoint_death", "proxy_port", "bouncer_port")


class Controls:
    """Numbers by name, and the clock offset of each process in seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = _NUMBER.size * (_CLOCKS + len(_NAMES))
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)

    def __getitem__(self, name: str) -> int:
        return int(self._read(_CLOCKS + _NAMES.index(name)))

    def __setitem__(self, name: str, value: int) -> None:
        self._write(_CLOCKS + _NAMES.index(name), value)

    def set_clocks(self, slots: Iterable[str], seconds: float) -> None:
        """Set the clock offset of some members of the fleet."""
        for slot in slots:
            self._write(_index(slot), seconds)

    def clock_of(self, slot: str) -> float:
        """Return the clock offset of a member in seconds."""
        return self._read(_index(slot))

    def _read(self, index: int) -> float:
        (number,) = _NUMBER.unpack_from(self._memory, index * _NUMBER.size)
        return float(number)

    def _write(self, index: int, value: float) -> None:
        _NUMBER.pack_into(self._memory, index * _NUMBER.size, value)


def shift_clock(controls: Controls, slot: str) -> None:
    """Shift the wall clock of this process by its offset. Monotonic time stays correct."""
    real_time = time.time

    def shifted_time() -> float:
        return real_time() + controls.clock_of(slot)

    def shifted_now(tz: tzinfo | None = None) -> datetime:
        return datetime.fromtimestamp(shifted_time(), tz)

    replace(time, "time", shifted_time)
    replace(clock, "datetime", SimpleNamespace(now=shifted_now))


def _index(slot: str) -> int:
    role, number = slot.split("-")
    return _ROLES.index(role) * _MEMBERS_MAX + int(number) % _MEMBERS_MAX
