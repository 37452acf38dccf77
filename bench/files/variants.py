"""Buses on files that work but are too slow: a bound must detect each one."""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path

from bench.files.load import TOPOLOGY
from kingdom.backends.files.bus import FilesBus
from kingdom.backends.files.system.disk import Disk
from kingdom.bus import Delivery


class _SyncingDisk(Disk):
    """Syncs every file that is written or removed, although the journal has everything."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def unlink(self, path: str) -> bool:
        found = super().unlink(path)
        self.sync_directory(str(Path(path).parent))
        return found


class _ListingBus(FilesBus):
    """Lists the directory at every claim, although the index has everything."""

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        await self.run_in_thread(lambda: list(os.scandir(self.store.layout.events(stream, "PENDING"))))
        return await super().claim(stream, limit, worker)


class _PollingBus(FilesBus):
    """Polls for work and ignores wake-ups."""

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        del streams
        # Much longer than a wake-up takes on a busy machine.
        await asyncio.sleep(min(at_most.total_seconds(), 0.4))


VARIANTS: Mapping[str, Callable[[Path], FilesBus]] = {
    "syncs-every-file": lambda root: FilesBus(root, TOPOLOGY, disk=_SyncingDisk()),
    "lists-the-directory": lambda root: _ListingBus(root, TOPOLOGY),
    "polls": lambda root: _PollingBus(root, TOPOLOGY),
}


def make_bus(root: Path, variant: str | None = None) -> FilesBus:
    """Return a bus on files, working or broken."""
    return VARIANTS[variant](root) if variant else FilesBus(root, TOPOLOGY)
