"""The status of the court, as people read it."""

from datetime import UTC, datetime

import msgspec
import pytest

from kingdom.cli.court.status_view import facts
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.status import CourtStatus, HealthSummary, MoneySummary, ParkedRun, WaitingSummary

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def a_court_status(*parked: ParkedRun) -> CourtStatus:
    return CourtStatus(
        at=NOON,
        health=HealthSummary(level="green", reason=""),
        roles=(),
        money=MoneySummary(spent=1.0, set_aside=2.0, limit=300.0, status=TokenStatus.OK),
        slots=(),
        undecided=0,
        waiting=WaitingSummary(),
        assignments={"in_progress": 1},
        open_asks=0,
        dead_letters={},
        paused={},
        hosts=(),
        parked=parked,
    )


def test_a_run_that_waits_for_its_vendor_is_shown_with_reason_and_time() -> None:
    reason = "usage limit reached; it goes on by itself at 2026-11-15 15:00 UTC"
    lines = [line.plain for line in facts(a_court_status(ParkedRun(workflow="wf-1", until=NOON, reason=reason)))]
    assert f"parked       wf-1: {reason}" in lines


def test_the_money_of_the_day_shows_what_generals_have_spent_and_what_is_set_aside() -> None:
    lines = [line.plain for line in facts(a_court_status())]
    assert "money today  ok: $1.00 spent by Generals and $2.00 set aside of $300.00" in lines


def test_without_parked_runs_nothing_is_shown() -> None:
    assert not any(line.plain.startswith("parked") for line in facts(a_court_status()))


@pytest.mark.parametrize(
    ("level", "effect", "reported"), [("green", "", ""), ("orange", "one run at a time", ": one run at a time")]
)
def test_a_health_level_is_shown_with_its_effect_on_new_work(level: str, effect: str, reported: str) -> None:
    health = HealthSummary(level=level, reason="cpu_percent: 85", age_seconds=5, effect=effect)
    first = next(facts(msgspec.structs.replace(a_court_status(), health=health)))
    assert first.plain == f"health       {level} (processors at 85 %), read 5.0 s ago{reported}"
