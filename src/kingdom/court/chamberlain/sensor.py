"""Measure the resources of this machine."""

import asyncio
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil

from kingdom.court.chamberlain.health import CPU, DISK, MEMORY

WINDOW_SECONDS = 120.0
_PRESSURE_FILE = Path("/proc/pressure/cpu")


class Sensor(ABC):
    """Measures the resources of a machine."""

    name: str

    @abstractmethod
    async def read(self) -> dict[str, float]:
        """Return the used percentage of memory and disk, and the pressure on the processors in percent."""


class ProcessorPressure:
    """Measures the processor pressure of the last two minutes: the share of the time in which work waited for a core.

    Linux reports it (pressure stall information). Elsewhere the load is used: the processes per core beyond one.
    """

    def __init__(
        self,
        file: Path = _PRESSURE_FILE,
        *,
        load: Callable[[], float] = lambda: os.getloadavg()[0] / (os.cpu_count() or 1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file: Path | None = file
        self._load = load
        self._clock = clock
        # Each sample has its time, and for how many seconds work has waited until then.
        self._samples: deque[tuple[float, float]] = deque()
        try:
            _read_pressure(file)
        except (OSError, LookupError, ValueError):
            # The kernel has no pressure stall information, or a container shows an empty file.
            self._file = None
        # For the part of the window before the first sample, the pressure of the minute before that sample is used.
        self._before, _ = self._sample()

    def read(self) -> float:
        """Return the pressure in percent."""
        _, (at, waited) = self._sample()
        while len(self._samples) > 1 and at - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()
        first_at, first_waited = self._samples[0]
        measured = at - first_at
        before = self._before * max(0.0, WINDOW_SECONDS - measured)
        percent = (100 * (waited - first_waited) + before) / max(WINDOW_SECONDS, measured)
        return min(100.0, max(0.0, percent))

    def _sample(self) -> tuple[float, tuple[float, float]]:
        """Take a sample. Return the pressure of the last minute in percent, and the sample."""
        at = self._clock()
        if self._file:
            recent, waited = _read_pressure(self._file)
        else:
            recent = min(100.0, max(0.0, self._load() - 1) * 100)
            last_at, last_waited = self._samples[-1] if self._samples else (at, 0.0)
            waited = last_waited + (at - last_at) * recent / 100
        self._samples.append((at, waited))
        return recent, self._samples[-1]


def _read_pressure(file: Path) -> tuple[float, float]:
    """Return the pressure of the last minute in percent, and for how many seconds work has waited since the start."""
    # some avg10=0.00 avg60=0.00 avg300=0.00 total=0
    fields = dict(field.split("=") for field in file.read_text().splitlines()[0].split()[1:])
    return float(fields["avg60"]), int(fields["total"]) / 1_000_000


class MachineSensor(Sensor):
    """Measures this machine: processor pressure, memory, and the disk of a directory."""

    def __init__(self, directory: Path | None) -> None:
        self.name = socket.gethostname()
        self._directory = directory or Path.cwd()
        self._pressure = ProcessorPressure()

    async def read(self) -> dict[str, float]:
        """See `Sensor.read`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, float]:
        place = next(path for path in (self._directory, *self._directory.resolve().parents) if path.exists())
        return {
            CPU: self._pressure.read(),
            MEMORY: psutil.virtual_memory().percent,
            DISK: psutil.disk_usage(str(place)).percent,
        }
