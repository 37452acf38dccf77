"""The deliveries that workers of this process have from topics."""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

import msgspec
from confluent_kafka import Message

from kingdom.backends.kafka.messages import ReceivedEvent
from kingdom.backends.kafka.topic_reader import OwnedPartition, TopicReader
from kingdom.bus.delivery import Delivery
from kingdom.errors import LeaseLost


class OpenDelivery(msgspec.Struct, frozen=True, eq=False):
    """A delivery, and the offsets that are handled when it is settled. The last of them is that of its message."""

    delivery: Delivery
    reader: TopicReader
    partition: OwnedPartition
    message: Message
    offsets: tuple[tuple[int, int], ...]
    event: ReceivedEvent

    @property
    def topic(self) -> str:
        """Return the topic of the delivery."""
        return self.reader.topic


class OpenBatches:
    """The open deliveries by position, and the end of the lease of each batch. A separate thread calls `renew`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, OpenDelivery] = {}
        self._ends: dict[int, float] = {}

    def add(self, deliveries: Iterable[OpenDelivery], token: int, lease: timedelta) -> None:
        """Add a batch."""
        with self._lock:
            self._ends[token] = time.monotonic() + lease.total_seconds()
            self._open |= {each.delivery.position: each for each in deliveries}

    def find(self, positions: Collection[int]) -> dict[int, OpenDelivery]:
        """Return the open deliveries among some positions."""
        with self._lock:
            return {position: self._open[position] for position in positions if position in self._open}

    def require(self, positions: Collection[int]) -> dict[int, OpenDelivery]:
        """Return the open deliveries at some positions. Raise LeaseLost if one is no longer open."""
        found = self.find(positions)
        if lost := set(positions) - found.keys():
            raise LeaseLost(lost)
        return found

    def renew(self, leases: Mapping[int, timedelta]) -> frozenset[int]:
        """Extend batches, and return the tokens of those that still exist and have an owned partition.

        The events of the other partitions of a batch cannot be settled any more.
        """
        now = time.monotonic()
        with self._lock:
            owned = {each.delivery.token for each in self._open.values() if each.reader.owns(each.partition)}
            alive = frozenset(token for token in leases if token in self._ends and token in owned)
            self._ends |= {token: now + leases[token].total_seconds() for token in alive}
        return alive

    def settle(self, positions: Collection[int]) -> None:
        """Forget deliveries that are settled."""
        removed = self._remove(positions)
        offsets: dict[OwnedPartition, list[tuple[int, int]]] = defaultdict(list)
        for each in removed:
            offsets[each.partition] += each.offsets
        for partition, settled in offsets.items():
            partition.ownership = partition.ownership.settle(settled)
        for reader in {each.reader for each in removed}:
            reader.settle((each.partition, each.offsets[-1][0]) for each in removed if each.reader is reader)

    def give_back(self, positions: Collection[int]) -> None:
        """Let deliveries be delivered again, because they are not settled."""
        removed = self._remove(positions)
        for reader in {each.reader for each in removed}:
            mine = [each for each in removed if each.reader is reader]
            for each in mine:
                each.partition.uncovered.extend(each.offsets[:-1])
            reader.give_back([(each.partition, each.message) for each in mine])

    def give_back_expired(self) -> None:
        """Let the deliveries of batches that were not renewed in time be delivered again."""
        now = time.monotonic()
        with self._lock:
            expired = {token for token, end in self._ends.items() if end < now}
            positions = [position for position, each in self._open.items() if each.delivery.token in expired]
            for token in expired:
                del self._ends[token]
        self.give_back(positions)

    def _remove(self, positions: Collection[int]) -> list[OpenDelivery]:
        with self._lock:
            removed = [self._open.pop(position) for position in positions if position in self._open]
            left = {each.delivery.token for each in self._open.values()}
            for token in {each.delivery.token for each in removed} - left:
                self._ends.pop(token, None)
        return removed
