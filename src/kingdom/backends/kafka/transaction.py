"""The Transaction that also settles events of topics: offsets, epochs and the outbox in one database transaction."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kingdom.backends.kafka.batches import OpenBatches, OpenDelivery
from kingdom.backends.kafka.inbox import settlement
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.backends.postgres.writing import outcome_statement
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Done, MoveToStore, Release
from kingdom.bus.port import EventCopy, Settlement
from kingdom.errors import LeaseLost


class KafkaTransaction(PostgresTransaction):
    """A transaction that settles events of topics, or of the outbox, or both.

    A settlement records the offset of its event as handled. If the outcome is not Done, the event also moves to the
    outbox, and later events of its key follow it. Other released events return to their topic.
    """

    batches: OpenBatches
    # The positions that the transaction has settled, and those that it returns to their topic.
    settled: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    _moved: Mapping[tuple[str, int], list[tuple[EventCopy, Settlement]]] = {}

    async def hold(self, deliveries: Sequence[Delivery], *, optimistic: bool = False) -> None:
        """Lock what the deliveries belong to: leases, or partitions of topics. Partitions are always locked at once."""
        if not deliveries or not deliveries[0].in_transport:
            await super().hold(deliveries, optimistic=optimistic)
            return
        found = self.batches.find([each.position for each in deliveries])
        owned: set[tuple[str, int]] = set()
        for (stream, topic), places in _by_topic(found).items():
            epochs = {each.partition.number: each.partition.ownership.epoch for each in places}
            parameters = {
                "stream": stream,
                "topic": topic,
                "partitions": list(epochs),
                "epochs": list(epochs.values()),
            }
            rows = await self._lock("hold_partitions", parameters)
            owned |= {(topic, row["partition"]) for row in rows}
            self.held_at = next((row["now"] for row in rows), self.held_at)
        lost = [each for each in found.values() if (each.topic, each.partition.number) not in owned]
        _mark_lost(lost)
        held = found.keys() - {each.delivery.position for each in lost}
        self.held = tuple(each for each in deliveries if each.position in held)

    def _server_can_check(self) -> bool:
        # Only the rows of `settle_partitions` tell whether the partitions are still owned.
        return min(self.changes.settlements, default=0) >= 0 and super()._server_can_check()

    async def _apply(self) -> None:
        mine = {position: each for position, each in self.changes.settlements.items() if position < 0}
        places = self.batches.require(mine)
        for position in mine:
            del self.changes.settlements[position]
        self.returned = _returned(mine)
        self.settled = frozenset(mine) - self.returned
        await self._record_offsets([places[position] for position in self.settled])
        moved: dict[tuple[str, int], list[tuple[EventCopy, Settlement]]] = defaultdict(list)
        for position in sorted(self.settled):
            settled, place = mine[position], places[position]
            if not isinstance(settled.outcome, Done):
                copy = EventCopy(
                    replace(settled.stream, transport=None), place.delivery.envelope, place.event.not_before
                )
                self.enqueue([copy])
                if not isinstance(settled.outcome, Release | MoveToStore):
                    moved[settled.stream.name, settled.token].append((copy, settled))
        self._moved = moved
        await super()._apply()

    async def _record_offsets(self, places: Sequence[OpenDelivery]) -> None:
        for (stream, topic), group in _by_topic({each.delivery.position: each for each in places}).items():
            partitions = {each.partition.number: each.partition.ownership for each in group}
            offsets: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for each in group:
                offsets[each.partition.number] += each.offsets
            parameters = settlement(stream, topic, partitions, offsets)
            rows = await self._lock("settle_partitions", parameters)
            settled = {row["partition"] for row in rows}
            if lost := [each for each in group if each.partition.number not in settled]:
                _mark_lost(lost)
                raise LeaseLost(each.delivery.position for each in lost)

    async def _complete(self) -> None:
        """Settle the events that ran and are now first in the outbox, as if they had been claimed from there."""
        refused = {id(copy) for copy in self.changes.duplicates}
        for (stream, token), pairs in self._moved.items():
            new = {copy.envelope.event_id: settled for copy, settled in pairs if id(copy) not in refused}
            if not new:
                continue
            parameters = {"stream": stream, "event_ids": list(new), "token": token}
            for row in await self._lock("claim_moved", parameters):
                settled = new[row["event_id"]]
                in_outbox = Settlement(settled.stream, row["id"], token, settled.ordering_key, settled.outcome)
                sql, values, check = outcome_statement(self._queries, in_outbox)
                (found,) = await self._run((sql, values))
                if check:
                    check(found)
            await self._lock("end_move", {"token": token})


def _returned(settlements: Mapping[int, Settlement]) -> frozenset[int]:
    """Return the released positions that follow no event of their key into the outbox."""
    leaving = {
        each.ordering_key
        for each in settlements.values()
        if each.ordering_key and not isinstance(each.outcome, Done | Release)
    }
    return frozenset(
        position
        for position, each in settlements.items()
        if isinstance(each.outcome, Release) and each.ordering_key not in leaving
    )


def _mark_lost(places: Iterable[OpenDelivery]) -> None:
    """Let the reader take partitions again, if the brokers still give them to this process."""
    for each in places:
        each.partition.is_lost = True


def _by_topic(places: Mapping[int, OpenDelivery]) -> dict[tuple[str, str], list[OpenDelivery]]:
    groups: dict[tuple[str, str], list[OpenDelivery]] = defaultdict(list)
    for each in places.values():
        groups[each.delivery.stream, each.topic].append(each)
    return groups
