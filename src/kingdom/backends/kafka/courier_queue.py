"""The events that wait for the courier, in ticks."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow, class_row

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.rows import COURIER_HINT

# The values of the events of a piece have at most this many characters together, unless the piece has one event.
PIECE_BYTES = 16_000_000
_FETCHED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class CarriedEvent:
    """An event on its way to a transport. `seq` orders the events of a tick, and `value` is the envelope as JSON."""

    seq: int
    stream: str
    partition_key: str | None
    event_id: UUID
    event_type: str
    schema_version: int
    trace_id: str
    not_before: datetime | None
    value: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of a tick that share a Kafka transaction."""

    events: Sequence[CarriedEvent]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """The events that became visible between two snapshots."""

    number: int
    snapshot: str
    earlier: str


@dataclass(frozen=True, slots=True)
class CourierTerm:
    """The right to be the courier: the id of the store, and the last tick that a courier has reported as sent."""

    store: UUID
    sent: int


class CourierQueue:
    """Reads the events that wait for the courier, and records what is sent."""

    def __init__(self, bus: PostgresBus) -> None:
        self._bus = bus

    async def hold(self, holder: str, lease: timedelta) -> CourierTerm | None:
        """Become the courier, or renew the role. Return None while another courier holds the role."""
        rows = await self._run("hold_courier", holder=holder, lease=lease)
        return CourierTerm(**rows[0]) if rows else None

    async def leave(self, holder: str) -> None:
        """Let another courier take over at once."""
        await self._run("leave_courier", holder=holder)

    async def take_ticks(self, sent: int, *, begun: int = 0) -> list[Tick]:
        """Commit a new tick if there are new events, and return all ticks after the last sent one.

        `begun` is the last tick of which something is sent. If the server has lost it in a failover, its number is not
        used again, because events of the new tick would count as sent.
        """
        queries, parameters = self._bus.queries, {"sent": sent, "begun": max(sent, begun)}
        with translate_errors():
            async with self._bus.responsive_connection() as connection:
                await connection.run_and_commit(
                    (queries["begin"], {}), (queries["lock_courier"], {}), (queries["add_tick"], parameters)
                )
                (rows,) = await connection.fetch((queries["unsent_ticks"], parameters))
        return [Tick(**row) for row in rows]

    async def pieces(self, tick: Tick, after: int, limit: int) -> AsyncGenerator[Piece, None]:
        """Yield the events of a tick after a position, in pieces of at most `limit` events. The last may be empty.

        After a long outage of the brokers, the server sorts many events, so the first piece may take minutes.
        """
        parameters = {"snapshot": tick.snapshot, "earlier": tick.earlier, "after": after}
        with translate_errors():
            async with (
                self._bus.pool.connection() as connection,
                connection.transaction(),
                # With a cursor, the server sorts a large tick once, and this process has only one piece in memory.
                connection.cursor("tick", row_factory=class_row(CarriedEvent)) as cursor,
            ):
                cursor.itersize = _FETCHED_AT_ONCE
                await cursor.execute(self._bus.queries["events_of_tick"], parameters)
                events, size = list[CarriedEvent](), 0
                async for event in cursor:
                    size += len(event.value)
                    if len(events) == limit or (events and size > PIECE_BYTES):
                        yield Piece(events, is_last=False)
                        events, size = [], len(event.value)
                    events.append(event)
                yield Piece(events, is_last=True)

    async def note_sent(self, number: int) -> None:
        """Record that a tick is sent."""
        await self._run("note_sent", number=number)

    async def lag(self) -> timedelta:
        """Return how long the oldest event has been waiting for the courier."""
        (row,) = await self._run("courier_lag")
        return timedelta(seconds=row["seconds"])

    async def remember_topic(self, topic: str, partitions: int) -> int:
        """Store the number of partitions of a new topic. Return the number that a topic had at its first use."""
        (row,) = await self._run("remember_topic", topic=topic, partitions=partitions)
        return int(row["partitions"])

    async def wait(self, at_most: timedelta) -> None:
        """Wait until there may be new events, but no longer than `at_most`."""
        await self._bus.wait([COURIER_HINT], at_most)

    async def _run(self, name: str, **parameters: Any) -> list[DictRow]:
        with translate_errors():
            async with self._bus.responsive_connection() as connection:
                return (await connection.fetch((self._bus.queries[name], parameters)))[0]
