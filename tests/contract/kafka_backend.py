"""The contract of delivery with Kafka between publishers and workers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Message

from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.kafka.topic_reader import TopicReader
from kingdom.bus import Bus, RecordKind, Topology
from tests.contract.backends import LONG, PostgresBackend
from tests.integration.running import eventually

CARRIED = frozenset({"free", "other", "line", "skipping"})
# The files whose tests are about delivery.
FILES = frozenset({"test_delivery.py", "test_ordered.py", "test_retries.py", "test_pause.py"})
# The tests that do not hold on Kafka, by the row of docs/backends.md that says why.
DIFFERENCES = {
    "finished events": {
        "test_a_done_event_is_never_delivered_again",
        "test_a_reaction_that_publishes_an_event_with_a_given_id_runs_once_and_so_do_its_neighbors",
        "test_an_unrequested_cancellation_fails_the_attempt_and_not_its_neighbors",
    },
    "the position of an event": {
        "test_settling_a_head_makes_the_next_one_the_head",
        "test_an_outcome_other_than_done_releases_the_rest_of_the_run",
        "test_a_dead_head_blocks_its_key_if_the_stream_blocks",
    },
    "`kingdom bus stats`": {
        "test_a_second_pause_gives_the_newer_reason_and_one_resume_ends_both",
        "test_an_event_that_waits_for_its_retry_is_not_counted_as_in_flight",
        "test_the_state_of_every_stream_is_counted",
    },
    "an event that is published again": {
        "test_many_events_that_are_published_again_are_duplicates_and_the_new_one_among_them_is_not",
    },
    "a handler that takes long": {
        "test_events_come_in_the_order_of_their_publishing",
        "test_a_claim_takes_no_more_than_its_limit",
        "test_a_claim_takes_the_same_number_of_events_of_each_key",
        "test_a_key_in_flight_does_not_delay_the_events_of_other_keys",
        "test_events_without_a_key_wait_for_no_other",
    },
    "a claim of another process": {
        "test_a_follower_that_is_released_when_its_head_is_done_can_be_claimed_by_another_process",
        "test_an_event_of_a_key_in_flight_is_not_claimed",
        "test_a_paused_stream_gives_no_events",
    },
    "the events of a worker that died": {
        "test_the_unsettled_events_of_a_lost_run_are_delivered_again_in_order",
        "test_a_run_stops_before_a_suspect",
        "test_an_event_lost_with_others_is_claimed_alone_afterwards",
        "test_a_suspect_does_not_wait_for_healthy_events_and_runs_alone",
        "test_an_event_is_no_longer_suspect_after_its_handler_has_ended",
        "test_an_event_that_kills_its_worker_ends_dead_and_its_neighbors_do_not",
        "test_events_that_lose_leases_only_together_are_not_quarantined",
        "test_an_event_claimed_too_often_without_an_outcome_ends_dead",
        "test_an_event_whose_lease_was_lost_during_a_pause_is_delivered_after_it",
    },
}


class KafkaBackend(PostgresBackend):
    """PostgreSQL, with one topic per stream. Each open bus has a courier; only one of them works."""

    name = "postgres+kafka"
    place_fixture = "kafka_place"
    # They would have to be claimed from topics, where the events behind them wait.
    has_bystanders = False

    def __init__(self, place: str) -> None:
        dsn, servers, prefix = json.loads(place)
        super().__init__(dsn)
        # With one partition, events come in the order of their publishing, as tests expect it.
        self._brokers = Brokers(servers=servers, prefix=prefix, partitions=1)
        self.bus_type: Any = partial(KafkaBus, brokers=self._brokers)
        self._received = Counter[TopicReader]()
        self._open: list[KafkaBus] = []

    @asynccontextmanager
    async def open(
        self, topology: Topology, kinds: Collection[RecordKind], idle_limit: timedelta = LONG
    ) -> AsyncIterator[Bus]:
        streams = [topology.stream(name) for name in topology.names()]
        carried = Topology(replace(s, transport="kafka") if s.name in CARRIED else s for s in streams)
        buffer = TopicReader._buffer

        def buffer_and_count(reader: TopicReader, messages: Sequence[Message]) -> bool:
            self._received[reader] += len(messages)
            return buffer(reader, messages)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TopicReader, "_buffer", buffer_and_count)
            async with super().open(carried, kinds, idle_limit) as bus:
                self._open.append(_kafka(bus))
                courier = Courier(_kafka(bus), self._brokers)
                running = asyncio.create_task(courier.run())
                yield bus
                courier.stop()
                await running

    def reset_shortcuts(self, bus: Bus) -> None:
        super().reset_shortcuts(bus)
        _kafka(bus)._outbox_empty_until.clear()

    async def until_arrived(self, bus: Bus, stream: str) -> None:
        kafka = _kafka(bus)
        if stream not in CARRIED:
            return
        reader = kafka._readers.get(stream) or kafka._open_reader(kafka.topology.stream(stream))
        sent = self._connection.execute("SELECT seq FROM kingdom.courier_event WHERE stream = %s", [stream]).fetchall()

        async def have_arrived() -> bool:
            return self._received[reader] >= len(sent)

        await eventually(have_arrived)

    def expire(self, tokens: Collection[int]) -> None:
        super().expire(tokens)
        for bus in self._open:
            ends = bus._batches._ends
            ends |= dict.fromkeys(ends.keys() & set(tokens), 0.0)


def runs_on_kafka(item: pytest.Item) -> bool:
    """Return whether a contract test is about delivery, and holds on Kafka too."""
    differing = {name for names in DIFFERENCES.values() for name in names}
    return item.path.name in FILES and getattr(item, "originalname", item.name) not in differing


def _kafka(bus: Bus) -> KafkaBus:
    assert isinstance(bus, KafkaBus)
    return bus
