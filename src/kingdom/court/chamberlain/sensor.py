"""What this machine uses, by its own word."""

import asyncio
import socket
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from kingdom.court.chamberlain.health import CPU, DISK, MEMORY


class Sensor(ABC):
    """Tells how much of its resources a machine uses."""

    name: str

    @abstractmethod
    async def read(self) -> dict[str, float]:
        """Return the percentage that is used of each resource."""


class MachineSensor(Sensor):
    """This machine: its processors since the last look, its memory, and the disk of a directory."""

    def __init__(self, directory: Path | None) -> None:
        self.name = socket.gethostname()
        self._directory = directory or Path.cwd()
        # The first answer compares with nothing.
        psutil.cpu_percent()

    async def read(self) -> dict[str, float]:
        """See the port."""
        # The processors are counted from the last look of the same thread.
        return {CPU: psutil.cpu_percent(), **await asyncio.to_thread(self._read)}

    def _read(self) -> dict[str, float]:
        place = next(path for path in (self._directory, *self._directory.resolve().parents) if path.exists())
        return {MEMORY: psutil.virtual_memory().percent, DISK: psutil.disk_usage(str(place)).percent}
