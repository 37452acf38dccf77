"""Clients of the stream: one that follows the whole log, and pages that show records and follow what changes."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from bench.stream.store import ENTRY, WRITERS
from bench.stream.variants import CURSOR_AFTER_DATA
from kingdom.bootstrap import operations_of
from kingdom.bus.log import LoggedEntry
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.bus.stream_client import StreamClient, StreamMessage

_POLL_SECONDS = 0.05
_RENDERING_SECONDS_MAX = 30.0
_LOG_PAGE = 1000


class StreamedData(msgspec.Struct):
    """The data of an entry of the bench."""

    writer: str
    number: int
    knows: dict[str, int]


class StreamedEntry(msgspec.Struct):
    """The fields of an entry that the clients need."""

    cursor: str
    type: str
    data: StreamedData


class StreamedType(msgspec.Struct):
    """The type of any entry."""

    type: str


@dataclass(frozen=True, slots=True)
class Site:
    """The address of a server, and a token with the right to look."""

    url: str
    token: str


_decode = msgspec.json.Decoder(StreamedEntry).decode
_decode_type = msgspec.json.Decoder(StreamedType).decode


def _is_of_bench(message: StreamMessage) -> bool:
    """Return whether a message is an entry of a writer. The server writes entries too."""
    return _decode_type(message.data).type == ENTRY


@dataclass(slots=True)
class LogClient:
    """Follows the log from its start, and keeps every entry in the order of arrival."""

    client: StreamClient
    held: list[StreamedEntry] = field(default_factory=list)
    resets: int = 0

    @classmethod
    def at(cls, site: Site) -> "LogClient":
        """Return a client that begins at the start of the log."""
        return cls(StreamClient(site.url, site.token, "start"))

    async def follow(self) -> None:
        """Follow until cancelled."""
        async for message in self.client.messages():
            if message.event != "entry":
                self.resets += 1
            elif _is_of_bench(message):
                self.held.append(_decode(message.data))


@dataclass(slots=True)
class Page:
    """Shows the last number of each writer: from the records when it is opened, then from the stream."""

    shown: dict[str, int]
    client: StreamClient
    gaps: list[str] = field(default_factory=list)

    @classmethod
    async def open(cls, site: Site, bus: Bus, variant: str) -> "Page":
        """Read the cursor before the data, so that no entry is missed. One variant does the opposite."""
        operations = operations_of(bus)
        if variant == CURSOR_AFTER_DATA:
            before = await operations.log_end()
            shown = await read_numbers(bus)
            # Rendering a page takes time, and meanwhile the log gets an entry that the page does not show. An open
            # transaction may hold the end of the log back, so a changed record is not enough.
            with suppress(TimeoutError):
                async with asyncio.timeout(_RENDERING_SECONDS_MAX):
                    while not _has_news(await operations.read_log(before, _LOG_PAGE), shown):  # noqa: ASYNC110 - others write
                        await asyncio.sleep(_POLL_SECONDS)
            cursor = await operations.log_end()
        else:
            cursor = await operations.log_end()
            shown = await read_numbers(bus)
        return cls(shown, StreamClient(site.url, site.token, str(cursor)))

    async def follow(self) -> None:
        """Follow until cancelled."""
        async for message in self.client.messages():
            if message.event != "entry":
                self.gaps.append(f"the page was told to reload: {message.event}")
                continue
            if not _is_of_bench(message):
                continue
            entry = _decode(message.data)
            known = self.shown.get(entry.data.writer, 0)
            if entry.data.number > known + 1:
                self.gaps.append(f"{entry.data.writer}: {entry.data.number} came after {known}")
            self.shown[entry.data.writer] = max(known, entry.data.number)


def _has_news(log: Sequence[LoggedEntry], shown: Mapping[str, int]) -> bool:
    written = [each.entry.data for each in log if each.entry.type == ENTRY]
    return any(data["number"] > shown.get(data["writer"], 0) for data in written)


async def read_numbers(bus: Bus) -> dict[str, int]:
    """Return the last number that each writer has written."""
    async with bus.transaction() as transaction:
        return {record.id: record.doc["last"] for record in await transaction.find(RecordQuery(kind=WRITERS.name))}
