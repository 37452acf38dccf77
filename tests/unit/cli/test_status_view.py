"""The status of the court, as people read it."""

import io
from datetime import UTC, datetime

import msgspec
import pytest
from rich.console import Console

from kingdom.cli.court.status_view import facts, status_view
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.followups.summary import summarize_followup
from kingdom.court.health_summary import HealthSummary
from kingdom.court.package import FollowPolicy
from kingdom.court.status import CourtStatus, MoneySummary, ParkedRun, WaitingSummary
from tests.unit.court.followups.test_rules import FOLLOWUP

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
    assert "money today  ok: $1.00 spent by Generals and $2.00 reserved of $300.00" in lines


def test_without_parked_runs_nothing_is_shown() -> None:
    assert not any(line.plain.startswith("parked") for line in facts(a_court_status()))


@pytest.mark.parametrize(
    ("level", "effect", "reported"), [("green", "", ""), ("orange", "one run at a time", ": one run at a time")]
)
def test_a_health_level_is_shown_with_its_effect_on_new_work(level: str, effect: str, reported: str) -> None:
    health = HealthSummary(level=level, reason="cpu_percent: 85", age_seconds=5, effect=effect)
    first = next(facts(msgspec.structs.replace(a_court_status(), health=health)))
    assert first.plain == f"health       {level} (processors at 85 %), read 5.0 s ago{reported}"


def test_the_first_followed_pull_requests_are_shown_and_the_others_are_counted() -> None:
    followups = [msgspec.structs.replace(FOLLOWUP, id=f"acme/shop#{number}") for number in range(100, 112)]
    summaries = tuple(summarize_followup(each, lambda _: FollowPolicy()) for each in followups)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(status_view(msgspec.structs.replace(a_court_status(), followups=summaries)))
    shown = console.export_text()
    assert "review 0 of 5, checks 0 of 3, conflicts 0 of 2" in shown
    assert ("acme/shop#109" in shown, "acme/shop#110" in shown) == (True, False)
    assert "2 more: kingdom followup list" in shown
