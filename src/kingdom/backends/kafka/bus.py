"""The bus on PostgreSQL in which Kafka carries the streams that declare it as their transport."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from confluent_kafka import Message

from kingdom.backends.kafka.batches import OpenBatches, OpenDelivery
from kingdom.backends.kafka.brokers import Brokers
from kingdom.backends.kafka.inbox import Inbox, to_multirange
from kingdom.backends.kafka.messages import ReceivedEvent, read_event
from kingdom.backends.kafka.topic_reader import OwnedPartition, TopicReader
from kingdom.backends.kafka.transaction import KafkaTransaction
from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.backends.postgres.rows import with_same_key
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import AnyOutcome, Dead, MoveToStore
from kingdom.bus.port import LeaseRenewal
from kingdom.bus.stream import Stream, Topology

# If this many owners of a partition in a row have settled no event, one of its events may be killing them.
_TAKEOVERS_MAX = 3
# How long a claim trusts that the outbox has no due events of a stream.
_OUTBOX_SECONDS = 0.1
_FIRST_POSITION = -(2**62)


class KafkaBus(PostgresBus):
    """A bus on PostgreSQL that also delivers from topics. Records, retries, effects and dead letters stay in the store.

    A claim from a topic takes a batch of messages. Their positions are negative, and exist only in this process.
    """

    def __init__(self, dsn: str, topology: Topology, *arguments: Any, brokers: Brokers, **options: Any) -> None:
        super().__init__(dsn, topology, *arguments, **options)
        self._brokers = brokers
        self._batches = OpenBatches()
        self._readers: dict[str, TopicReader] = {}
        # Positions grow in the order of the messages, and those of the store are all positive.
        self._positions = itertools.count(_FIRST_POSITION)
        # Until when the claims of a stream skip the outbox.
        self._outbox_empty_until: dict[str, float] = {}
        # The streams whose next claim tries the topic first.
        self._topic_is_next: set[str] = set()

    async def close(self) -> None:
        """Leave the consumer groups, and close everything else."""
        readers, self._readers = self._readers, {}
        await asyncio.gather(*(reader.close() for reader in readers.values()))
        await super().close()

    def _new_transaction(self, connection: Connection) -> PostgresTransaction:
        may_skip = not self._through_pgbouncer
        transaction = KafkaTransaction(
            connection, self.queries, self.topology, self.kinds, self._opening, may_skip_opening=may_skip
        )
        transaction.batches = self._batches
        return transaction

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction; see `Bus.transaction`."""
        async with super().transaction(hold, optimistic=optimistic) as transaction:
            yield transaction
        if isinstance(transaction, KafkaTransaction):
            self._batches.settle(transaction.settled)
            self._batches.give_back(transaction.returned)
            for copy in transaction.changes.copies.values():
                self._outbox_empty_until.pop(copy.stream.name, None)
            if transaction.settled or transaction.returned:
                # A partition gives nothing more until everything that was taken from it is settled or returned.
                self._wakeups.wake_own_workers({name for name, reader in self._readers.items() if reader.has_messages})

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim events from the outbox or from the topic of the stream, in turns; see `Bus.claim`."""
        declared = self.topology.stream(stream)
        if not declared.transport:
            return await super().claim(stream, limit, worker)
        # Take turns, so that neither the outbox nor the topic keeps the other waiting.
        if stream in self._topic_is_next and (deliveries := await self._claim_from_topic(declared, limit)):
            self._topic_is_next.discard(stream)
            return deliveries
        if time.monotonic() >= self._outbox_empty_until.get(stream, 0.0):
            if deliveries := await super().claim(stream, limit, worker):
                self._topic_is_next.add(stream)
                self._wakeups.wake_own_workers({stream})
                return deliveries
            self._outbox_empty_until[stream] = time.monotonic() + _OUTBOX_SECONDS
        return await self._claim_from_topic(declared, limit)

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases and batches; see `Bus.renew`."""
        mine = self._batches.renew(leases)
        rest = {token: length for token, length in leases.items() if token not in mine}
        renewal = super().renew(rest) if rest else LeaseRenewal(frozenset(), frozenset())
        return LeaseRenewal(renewal.alive | mine, renewal.cancelled)

    async def _repair(self) -> int:
        # Without a new event, no settlement would find out that the server has lost earlier ones.
        for stream, reader in list(self._readers.items()):
            if owned := {each.number: each for each in reader.partitions}:
                known = [to_multirange(each.ownership.handled) for each in owned.values()]
                parameters = {"stream": stream, "topic": reader.topic, "partitions": list(owned), "known": known}
                for row in (await self._execute("partitions_set_back", parameters)).dicts():
                    owned[row["partition"]].is_lost = True
        return await super()._repair()

    async def _claim_from_topic(self, stream: Stream, limit: int) -> list[Delivery]:
        reader = self._readers.get(stream.name) or self._open_reader(stream)
        self._batches.give_back_expired()
        taken = reader.take(limit)
        if not taken:
            return []
        try:
            received = [(owned, message, read_event(stream, message)) for owned, message in taken]
            keys = list({key for *_, event in received if (key := _key(stream, event))})
            rows = await self._execute("begin_batch", {"stream": stream.name, "keys": keys}, raise_tokens=True)
        except BaseException:
            reader.give_back(taken)
            raise
        (begun,) = rows.dicts()
        if begun["paused"]:
            reader.give_back(taken)
            return []
        opened = self._deliveries(stream, reader, received, begun["token"])
        self._batches.add(opened.values(), begun["token"], stream.lease)
        try:
            deliveries = await self._move_to_store(opened, frozenset(begun["busy"]))
        except BaseException:
            self._batches.give_back(opened)
            raise
        if reader.has_messages:
            self._wakeups.wake_own_workers({stream.name})
        return deliveries

    def _deliveries(
        self,
        stream: Stream,
        reader: TopicReader,
        received: Sequence[tuple[OwnedPartition, Message, ReceivedEvent]],
        token: int,
    ) -> dict[int, OpenDelivery]:
        """Return the open deliveries by position. Creating each with `same_key` is cheaper than adding it later."""
        fresh: dict[int, tuple[OwnedPartition, Message, ReceivedEvent, tuple[tuple[int, int], ...]]] = {}
        positions: dict[str, list[int]] = defaultdict(list)
        for owned, message, event in received:
            offset = message.offset() or 0
            covered = owned.cover(offset)
            if covered is None:
                # The event was settled before this process took the partition.
                reader.settle([(owned, offset)])
                continue
            position = next(self._positions)
            fresh[position] = (owned, message, event, covered)
            if (key := _key(stream, event)) is not None:
                positions[key].append(position)
        same_key = {key: tuple(of_key) for key, of_key in positions.items()}
        opened: dict[int, OpenDelivery] = {}
        for position, (owned, message, event, covered) in fresh.items():
            key = _key(stream, event)
            delivery = Delivery(
                stream=stream.name,
                position=position,
                token=token,
                envelope=event.envelope,
                attempt=1,
                max_attempts=stream.retry.max_attempts,
                crash_count=0,
                ordered=stream.ordered,
                published_at=event.published_at,
                same_key=() if key is None else same_key[key],
                in_transport=True,
            )
            opened[position] = OpenDelivery(delivery, reader, owned, message, covered, event)
        return opened

    async def _move_to_store(self, opened: Mapping[int, OpenDelivery], busy: frozenset[str]) -> list[Delivery]:
        """Return the deliveries that may run now. Move the other events to the outbox, or return them to the topic.

        If earlier events of its key run now, a delayed event returns to the topic, with the later events of its key. In
        the outbox, another process could run it before the earlier events.
        """
        waiting, outcomes, rest = set(busy), dict[Delivery, AnyOutcome](), list[Delivery]()
        running, behind, returned = set[str](), set[str](), list[int]()
        for each in opened.values():
            delivery = each.delivery
            key = delivery.envelope.partition_key if delivery.ordered else None
            if each.event.problem:
                outcomes[delivery] = Dead(f"the message could not be read: {each.event.problem}", "malformed")
            elif key and (key in behind or (key in running and each.event.not_before)):
                behind.add(key)
                returned.append(delivery.position)
            elif each.event.not_before or key in waiting or each.partition.ownership.takeovers >= _TAKEOVERS_MAX:
                outcomes[delivery] = MoveToStore()
                waiting |= {key} if key else set()
            else:
                rest.append(delivery)
                running |= {key} if key else set()
        self._batches.give_back(returned)
        if outcomes:
            async with self.transaction() as transaction:
                await transaction.settle_all(outcomes)
        return rest if len(rest) == len(opened) else with_same_key(rest)

    def _open_reader(self, stream: Stream) -> TopicReader:
        topic = stream.source.name if stream.source else self._brokers.topic(stream.name)
        on_messages = partial(self._wakeups.wake_own_workers, {stream.name})
        inbox, group = Inbox(self, stream.name), self._brokers.topic(stream.name)
        reader = self._readers[stream.name] = TopicReader(
            self._brokers, topic, group, inbox, on_messages, creates_topic=stream.source is None
        )
        reader.start()
        return reader


def _key(stream: Stream, event: ReceivedEvent) -> str | None:
    return event.envelope.partition_key if stream.ordered else None
