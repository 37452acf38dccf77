"""Measure the resources of this machine."""

import asyncio
import socket
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from kingdom.court.chamberlain.health import CPU, DISK, MEMORY


class Sensor(ABC):
    """Measures the resources of a machine."""

    name: str

    @abstractmethod
    async def read(self) -> dict[str, float]:
        """Return the used percentage of each resource."""


class MachineSensor(Sensor):
    """Measures this machine: CPU since the last reading, memory, and the disk of a directory."""

    def __init__(self, directory: Path | None) -> None:
        self.name = socket.gethostname()
        self._directory = directory or Path.cwd()
        # The first call has no earlier call to compare with, so its value is not used.
        psutil.cpu_percent()

    async def read(self) -> dict[str, float]:
        """See the base class."""
        # CPU use is measured since the last call in the same thread.
        return {CPU: psutil.cpu_percent(), **await asyncio.to_thread(self._read)}

    def _read(self) -> dict[str, float]:
        place = next(path for path in (self._directory, *self._directory.resolve().parents) if path.exists())
        return {MEMORY: psutil.virtual_memory().percent, DISK: psutil.disk_usage(str(place)).percent}
