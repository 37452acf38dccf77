"""Clients of the stream: one that follows the whole log, and pages that show records and follow what changes."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from bench.stream.store import WRITERS
from bench.stream.variants import CURSOR_AFTER_DATA
from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.bus.stream_client import StreamClient


class StreamedData(msgspec.Struct):
    """The data of an entry of the bench."""

    writer: str
    number: int
    knows: dict[str, int]


class StreamedEntry(msgspec.Struct):
    """What the clients need of an entry."""

    cursor: str
    type: str
    data: StreamedData


_decode = msgspec.json.Decoder(StreamedEntry).decode


@dataclass(slots=True)
class LogClient:
    """Follows the log from its start, and holds every entry in the order in which it came."""

    client: StreamClient
    held: list[StreamedEntry] = field(default_factory=list)
    resets: int = 0

    @classmethod
    def at(cls, url: str) -> "LogClient":
        """Return a client that begins at the start of the log."""
        return cls(StreamClient(url, None, "start"))

    async def follow(self) -> None:
        """Follow until cancelled."""
        async for message in self.client.messages():
            if message.event == "entry":
                self.held.append(_decode(message.data))
            else:
                self.resets += 1


@dataclass(slots=True)
class Page:
    """Shows the last number of each writer: from the records when it is opened, then from the stream."""

    shown: dict[str, int]
    client: StreamClient
    gaps: list[str] = field(default_factory=list)

    @classmethod
    async def open(cls, url: str, bus: Bus, variant: str) -> "Page":
        """Read the cursor before the data, so that nothing falls between them."""
        operations = operations_of(bus)
        if variant == CURSOR_AFTER_DATA:
            shown = await _read_numbers(bus)
            # Rendering a page takes time.
            await asyncio.sleep(0.2)
            cursor = await operations.log_end()
        else:
            cursor = await operations.log_end()
            shown = await _read_numbers(bus)
        return cls(shown, StreamClient(url, None, str(cursor)))

    async def follow(self) -> None:
        """Follow until cancelled."""
        async for message in self.client.messages():
            if message.event != "entry":
                self.gaps.append(f"the page was told to reload: {message.event}")
                continue
            entry = _decode(message.data)
            known = self.shown.get(entry.data.writer, 0)
            if entry.data.number > known + 1:
                self.gaps.append(f"{entry.data.writer}: {entry.data.number} came after {known}")
            self.shown[entry.data.writer] = max(known, entry.data.number)


async def _read_numbers(bus: Bus) -> dict[str, int]:
    async with bus.transaction() as transaction:
        return {record.id: record.doc["last"] for record in await transaction.find(RecordQuery(kind=WRITERS.name))}
