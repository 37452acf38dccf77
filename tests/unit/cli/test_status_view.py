"""How the court stands, as people read it."""

from datetime import UTC, datetime

from kingdom.cli.status_view import facts
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.standing import HealthNow, MoneyNow, ParkedNow, Standing, Waiting

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def a_standing(*parked: ParkedNow) -> Standing:
    return Standing(
        at=NOON,
        health=HealthNow(level="green", reason=""),
        roles=(),
        money=MoneyNow(spent=1.0, set_aside=2.0, limit=300.0, status=TokenStatus.OK),
        slots=(),
        undecided=0,
        waiting=Waiting(),
        assignments={"in_progress": 1},
        open_asks=0,
        dead_letters={},
        paused={},
        hosts=(),
        parked=parked,
    )


def test_a_run_that_waits_for_its_vendor_is_shown_with_reason_and_time() -> None:
    reason = "usage limit reached; it goes on by itself at 2026-11-15 15:00 UTC"
    lines = [line.plain for line in facts(a_standing(ParkedNow(workflow="wf-1", until=NOON, reason=reason)))]
    assert f"parked       wf-1: {reason}" in lines


def test_where_nothing_is_parked_nothing_is_said_of_it() -> None:
    assert not any(line.plain.startswith("parked") for line in facts(a_standing()))
