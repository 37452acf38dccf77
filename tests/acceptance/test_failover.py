"""A primary is killed under load and its standby takes over. `python -m bench.failover` does the same for longer."""

import json
from typing import Any

import pytest

from tests.benches import bench

pytestmark = pytest.mark.benches


def failover(*arguments: str, ends_with: int) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(bench("failover", *arguments, ends_with=ends_with).stdout.splitlines()[-1])
    return figures


def test_with_a_synchronous_standby_no_acknowledged_event_is_lost_with_the_primary() -> None:
    figures = failover("--kills", "2", ends_with=0)
    assert figures["primaries_killed"] == 2
    assert figures["acknowledged_events_lost"] == 0
    assert set(figures["findings"].values()) == {0}


def test_with_an_asynchronous_standby_acknowledged_events_may_be_lost_but_nothing_is_stuck() -> None:
    figures = failover("--kills", "2", "--asynchronous", ends_with=0)
    assert figures["acknowledged_events_lost"] + figures["handled_again"] > 0
    assert set(figures["findings"].values()) == {0}


def test_the_bench_fails_if_the_standby_lags_unexpectedly() -> None:
    figures = failover("--kills", "1", "--broken", ends_with=1)
    assert figures["findings"]["events lost"] > 0


def test_the_bench_fails_if_a_limit_is_exceeded() -> None:
    done = bench("failover", "--kills", "1", "--at-most-leases", "-1", ends_with=1)
    assert "leases after a promotion" in done.stderr
