"""The store of the bench: its records, and how a process opens it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology

# A writer's record has the number of its last entry.
WRITERS = RecordKind(name="writer", directories={"open": "state/writers"})
# A record that a transaction writes first, so that the transaction gets its id early.
EARLY = RecordKind(name="early", directories={"open": "state/early"})
ENTRY = "bench.written"


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[Bus]:
    """Open the store of the bench."""
    async with open_bus(url, Topology([]), [WRITERS, EARLY], connections=4) as bus:
        yield bus
