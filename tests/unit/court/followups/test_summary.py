"""A followed pull request as people see it: its rounds, what waits, and the open question."""

from typing import Any

import msgspec
import pytest

from kingdom.court.followups.records import Followup, FollowupState, RoundEntry, RoundReason
from kingdom.court.followups.summary import (
    FollowupSummary,
    RoundUse,
    describe_followup,
    describe_rounds,
    summarize_followup,
)
from kingdom.court.package import FollowPolicy, RoundLimit
from tests.unit.court.followups.test_rules import FOLLOWUP
from tests.unit.workflow.model.scene import NOON

POLICY = FollowPolicy(budget_usd=2, review=RoundLimit(rounds=4), conflicts=RoundLimit(rounds=0))
WAITING = tuple(
    RoundEntry(id=f"wait-{number}", reason=reason)
    for number, reason in enumerate((RoundReason.CHECKS, RoundReason.REVIEW, RoundReason.REVIEW))
)


def summarize(policy: FollowPolicy | None = POLICY, **more: Any) -> FollowupSummary:
    followup: Followup = msgspec.structs.replace(FOLLOWUP, **more)
    return summarize_followup(followup, lambda general: policy if general == followup.general else None)


def test_the_used_rounds_are_shown_with_the_allowed_ones() -> None:
    summary = summarize(rounds={RoundReason.REVIEW: 1})
    assert summary.rounds[RoundReason.REVIEW] == RoundUse(used=1, allowed=4)
    assert describe_rounds(summary) == "review 1 of 4, checks 0 of 3"


def test_a_grant_allows_more_rounds_and_a_greater_budget() -> None:
    summary = summarize(grants=1, granted_at_usd=3.5)
    assert (describe_rounds(summary), summary.budget_usd) == ("review 0 of 8, checks 0 of 6", 5.5)


def test_of_a_general_without_a_package_only_the_used_rounds_are_known() -> None:
    summary = summarize(None, rounds={RoundReason.CHECKS: 2})
    assert (describe_rounds(summary), summary.budget_usd) == ("checks 2", None)


@pytest.mark.parametrize(
    ("more", "question", "described"),
    [
        ({}, "", "nothing waits"),
        ({"waiting": WAITING}, "", "waits for a round: review 2, checks 1"),
        (
            {"waiting": WAITING, "state": FollowupState.WAITING, "reason": "the last round failed"},
            FOLLOWUP.assignment_id,
            "asks a person: the last round failed",
        ),
        ({"state": FollowupState.ENDED, "reason": "it was merged", "ended_at": NOON}, "", "it was merged"),
    ],
)
def test_a_followup_says_what_it_waits_for_or_why_it_ended(more: dict[str, Any], question: str, described: str) -> None:
    summary = summarize(**more)
    assert (summary.question, describe_followup(summary)) == (question, described)
