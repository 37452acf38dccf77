"""The courier: it sends the events of carried streams to their topics, each once and in order."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog

from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.client_calls import call_client
from kingdom.backends.kafka.courier_queue import CarriedEvent, CourierQueue, CourierTerm, Tick
from kingdom.backends.kafka.topic_writer import CourierFenced, SentPosition, TopicWriter, cursor_topic
from kingdom.backends.postgres.bus import PostgresBus
from kingdom.errors import Misconfigured, Transient, Unavailable

# Another courier takes over if this one does not renew the role for this long. A courier that only hung is then fenced.
LEASE = timedelta(seconds=10)
# How many events share a Kafka transaction at most.
PIECE_EVENTS = 5000
# Renewals and reports update a row. As long as an old open transaction keeps vacuum from removing the old versions of
# the row, each update slows the next one.
_RENEWALS_PER_LEASE = 5
_REPORT_SECONDS = 1.0
_POLL = timedelta(seconds=1)
_PAUSE_SECONDS = 1.0
# How long a courier that stops waits for the database.
_LAST_ANSWER_SECONDS = 10.0
# Brokers forget the position of a group without members after some days, so an idle courier repeats it.
_REPEAT_SECONDS = 3600.0
_log = structlog.get_logger("kingdom.courier")
T = TypeVar("T")


class Courier:
    """Sends events until it is stopped. Of several couriers of a store, one sends and the others wait to take over."""

    def __init__(
        self, bus: PostgresBus, brokers: Brokers, *, name: str | None = None, lease: timedelta = LEASE
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        # The number of events that this process has sent.
        self.sent_events = 0
        self._queue = CourierQueue(bus)
        self._brokers = brokers
        self._streams = bus.topology.carried()
        self._lease = lease
        # Renews the role of this courier, and ends when another one has it.
        self._holding: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Send events until `stop` is called."""
        sending = asyncio.create_task(self._send_forever(), name="kingdom-courier")
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({sending}, timeout=_LAST_ANSWER_SECONDS)
        finally:
            stopped.cancel()
            sending.cancel()
            await asyncio.wait({sending, stopped})
        if sending.cancelled():
            _log.warning("the database or the brokers have not answered in time; the next courier continues")
        else:
            sending.result()

    async def _send_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                if term := await self._queue.hold(self.name, self._lease):
                    async with self._renewing():
                        await self._send_while_held(term)
                    await self._leave()
                    continue
            except CourierFenced as error:
                _log.warning("this courier waits", reason=str(error))
            except Transient as error:
                _log.warning("the courier cannot send; trying again", error=str(error))
                # Another courier may reach what this one does not.
                await self._leave()
            await self._pause()

    def stop(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - a piece is sent whole or not at all
        """Ask the courier to end after the piece that it is sending, or after some seconds without an answer."""
        self._stopping.set()

    async def lag(self) -> timedelta:
        """Return how long the oldest unsent event has been waiting."""
        return await self._queue.lag()

    async def _send_while_held(self, term: CourierTerm) -> None:
        writer = TopicWriter(self._brokers, term.store, await self._prepare_topics(self._streams))
        try:
            position = await self._call(writer.open)
            if position.tick == 0 and term.sent > 0:
                raise Misconfigured(
                    f"the brokers have lost the position of the courier, which had sent tick {term.sent}: see"
                    " docs/how-to/put-a-stream-on-kafka.md"
                )
            _log.info("the courier sends", name=self.name, tick=position.tick)
            await self._send_until_stopped(writer, position, term.sent)
        finally:
            await self._call(writer.close)

    async def _send_until_stopped(self, writer: TopicWriter, position: SentPosition, reported: int) -> None:
        repeat_at, report_at = time.monotonic() + _REPEAT_SECONDS, 0.0
        while not self._stopping.is_set() and self._holds():
            first = position.tick - (position.seq is not None)
            ticks = await self._queue.take_ticks(first, begun=position.tick)
            for tick in ticks:
                if self._stopping.is_set():
                    break
                position = await self._send_tick(writer, tick, position)
            if position.seq is None and position.tick > reported and time.monotonic() >= report_at:
                await self._queue.note_sent(position.tick)
                reported, report_at = position.tick, time.monotonic() + _REPORT_SECONDS
            if ticks:
                repeat_at = time.monotonic() + _REPEAT_SECONDS
            elif time.monotonic() > repeat_at and position.tick:
                await self._call(partial(writer.send, position.tick, (), position))
                repeat_at = time.monotonic() + _REPEAT_SECONDS
            else:
                await self._wait()
        if position.seq is None and position.tick > reported:
            await self._queue.note_sent(position.tick)

    @asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        """Renew the role also while one call takes longer than the lease, such as the sorting of a large tick."""
        self._holding = asyncio.create_task(self._renew_until_lost())
        try:
            yield
        finally:
            self._holding.cancel()
            await asyncio.wait({self._holding})
            # An unexpected error of the renewal is the cause of whatever else was raised.
            if not self._holding.cancelled():
                self._holding.result()

    async def _renew_until_lost(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / _RENEWALS_PER_LEASE)
            try:
                if not await self._queue.hold(self.name, self._lease):
                    return
            except Transient as error:
                _log.warning("cannot renew the role of the courier; trying again", error=str(error))

    def _holds(self) -> bool:
        """Return whether no other courier has taken over, as far as this one knows."""
        return self._holding is not None and not self._holding.done()

    async def _leave(self) -> None:
        with suppress(Transient):
            await self._queue.leave(self.name)

    async def _send_tick(self, writer: TopicWriter, tick: Tick, position: SentPosition) -> SentPosition:
        after = position.seq or 0 if position.tick == tick.number else 0
        async with aclosing(self._queue.pieces(tick, after, PIECE_EVENTS)) as pieces:
            async for piece in pieces:
                if not self._holds():
                    raise CourierFenced("another courier has taken over")
                position = SentPosition(tick.number, None if piece.is_last else piece.events[-1].seq)
                await self._prepare_undeclared(writer, piece.events)
                await self._call(partial(writer.send, tick.number, piece.events, position))
                self.sent_events += len(piece.events)
                if self._stopping.is_set():
                    break
        return position

    async def _prepare_undeclared(self, writer: TopicWriter, events: Sequence[CarriedEvent]) -> None:
        """Prepare topics for streams that the application does not put on Kafka, so that no event is lost or waits."""
        if streams := sorted(
            {event.stream for event in events if self._brokers.topic(event.stream) not in writer.partitions}
        ):
            _log.error(
                "events go to topics that no worker of this application reads: give their streams transport='kafka'"
                " again, or start the courier with the application that declares them",
                streams=streams,
            )
            writer.partitions |= await self._prepare_topics(streams)

    async def _prepare_topics(self, streams: Iterable[str]) -> dict[str, int]:
        topics = [self._brokers.topic(stream) for stream in streams]
        wanted = dict.fromkeys(topics, self._brokers.partitions) | {cursor_topic(self._brokers): 1}
        await self._call(partial(self._brokers.create_topics, wanted))
        counts = await self._call(partial(self._brokers.count_partitions, topics))
        if missing := [topic for topic in topics if not counts.get(topic)]:
            # The brokers show a new topic some time after they have created it.
            raise Unavailable(f"the brokers do not show the topics {', '.join(missing)} yet")
        known = {topic: await self._queue.remember_topic(topic, count) for topic, count in counts.items()}
        for topic, count in known.items():
            if counts[topic] < count:
                raise Misconfigured(
                    f"topic {topic} has {counts[topic]} partitions, but had {count}: keys would change their partition;"
                    f" create it again with {count} partitions"
                )
        return known

    async def _call(self, call: Callable[[], T]) -> T:
        return await call_client(call, self._stopping)

    async def _wait(self) -> None:
        waits = [asyncio.create_task(self._queue.wait(_POLL)), asyncio.create_task(self._stopping.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._stopping.wait()
        except TimeoutError:
            return
