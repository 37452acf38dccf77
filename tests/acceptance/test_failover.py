"""A primary is killed under load and its standby takes over. `python -m bench.failover` does the same for longer."""

import json
from typing import Any

import pytest

from tests.benches import bench

pytestmark = pytest.mark.benches


def failover(*arguments: str, ends_with: int) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(bench("failover", *arguments, ends_with=ends_with).stdout.splitlines()[-1])
    return figures


def test_nothing_that_was_acknowledged_is_lost_with_a_primary_that_has_a_synchronous_standby() -> None:
    figures = failover("--kills", "2", ends_with=0)
    assert figures["primaries_killed"] == 2
    assert figures["acknowledged_events_lost"] == 0
    assert set(figures["findings"].values()) == {0}


def test_nothing_is_stuck_and_no_stale_holder_is_accepted_where_the_server_forgets_what_it_acknowledged() -> None:
    figures = failover("--kills", "2", "--asynchronous", ends_with=0)
    assert figures["acknowledged_events_lost"] + figures["handled_again"] > 0
    assert set(figures["findings"].values()) == {0}


def test_a_standby_that_lags_unexpectedly_is_noticed() -> None:
    figures = failover("--kills", "1", "--broken", ends_with=1)
    assert figures["findings"]["events lost"] > 0


def test_a_limit_that_does_not_hold_is_reported() -> None:
    done = bench("failover", "--kills", "1", "--at-most-leases", "-1", ends_with=1)
    assert "leases after a promotion" in done.stderr
