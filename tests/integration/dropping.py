"""A realm with a queue of events that people may drop files into, and a worker that handles the adopted events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.bus import (
    Dispatcher,
    Envelope,
    Event,
    LogCursor,
    Record,
    RecordKind,
    RecordQuery,
    Stream,
    Topology,
    Transaction,
    Worker,
)
from kingdom.bus.record import Adoption
from kingdom.errors import MalformedEvent
from tests.patience import PATIENCE_SECONDS


def read(doc: Mapping[str, Any]) -> Record:
    for name in ("id", "type"):
        if not isinstance(doc.get(name), str) or not doc[name]:
            raise MalformedEvent(f"the field {name!r} must be a text")
    return Record(kind="event", id=doc["id"], state="pending", doc=doc)


def announce(record: Record) -> Envelope:
    return Envelope(type="Arrived", event_id=uuid5(NAMESPACE_URL, record.id), payload={"id": record.id})


EVENTS = RecordKind(
    name="event",
    directories={"pending": "queue/events/pending", "dispatched": "queue/events/dispatched"},
    adoption=Adoption(state="pending", read=read, announce=announce),
)
TOPOLOGY = Topology([Stream(name="arrivals", subscribes=frozenset({"Arrived"}))])


@dataclass(slots=True)
class DropQueue:
    """The queue directory as people see it, and its bus."""

    root: Path
    bus: FilesBus

    @property
    def box(self) -> Path:
        return self.root / "queue/events/pending"

    @property
    def rejected(self) -> Path:
        return self.root / "queue/events/rejected"

    def drop(self, event_id: str, **fields: Any) -> Path:
        """Drop a valid document: write it under a temporary name, then rename it."""
        unfinished = self.box / f".tmp-{event_id}.json"
        unfinished.write_text(json.dumps({"id": event_id, "type": "github.pr.review_requested", **fields}))
        return unfinished.rename(self.box / f"{event_id}.json")

    def reason(self, name: str) -> str:
        return (self.rejected / f"{name}.reason").read_text()

    async def record(self, event_id: str) -> Record | None:
        async with self.bus.transaction() as transaction:
            return await transaction.get("event", event_id)

    async def dispatched(self) -> list[str]:
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind="event", state="dispatched", limit=100_000))
        return [record.id for record in found]

    async def log(self) -> list[tuple[str, Mapping[str, Any]]]:
        entries = await FilesOperations(self.bus).read_log(LogCursor(), 100_000)
        return [(logged.entry.type, logged.entry.data) for logged in entries]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds; it may be a coroutine function."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = condition()
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer:
                    return
                await asyncio.sleep(0.02)
        raise AssertionError(what)


@asynccontextmanager
async def open_queue(root: Path) -> AsyncIterator[DropQueue]:
    """Open the realm without a worker."""
    async with FilesBus(root, TOPOLOGY, [EVENTS]) as bus:
        yield DropQueue(root, bus)


@asynccontextmanager
async def worked_queue(root: Path) -> AsyncIterator[DropQueue]:
    """Open the realm with a worker that dispatches every event that arrives."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Arrived")
    async def dispatch(event: Event[dict[str, str]], transaction: Transaction) -> None:
        record = await transaction.get("event", event.payload["id"])
        assert record is not None
        await transaction.put(record.replace(state="dispatched"))

    async with open_queue(root) as opened:
        worker = Worker(opened.bus, dispatcher, ["arrivals"], poll=timedelta(milliseconds=200))
        running = asyncio.create_task(worker.run())
        try:
            yield opened
        finally:
            worker.stop()
            await running
