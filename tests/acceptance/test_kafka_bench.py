"""The bench of streams on Kafka counts what a tick reads, and fails if a tick reads more with more retained events."""

import json

import pytest

from tests.benches import bench

pytestmark = pytest.mark.kafka


def test_a_tick_reads_as_much_with_many_retained_events_as_with_few() -> None:
    done = bench("kafka", "--quick", "--json", "-", ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["costShare"] > 0


def test_the_bench_fails_if_a_tick_reads_the_whole_table() -> None:
    done = bench("kafka", "--quick", "--variant", "scan", "--json", "-", ends_with=1)
    assert "growth with retained events" in done.stderr
