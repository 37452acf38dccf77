"""Followups as people see them. This module does no I/O."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime

import msgspec

from kingdom.court.followups.records import Followup, FollowupState, RoundReason
from kingdom.court.followups.rules import budget_of_rounds, round_limit
from kingdom.court.package import FollowPolicy

# Returns how a General follows its pull requests now, or None if it does not.
FollowPolicies = Callable[[str], FollowPolicy | None]


class RoundUse(msgspec.Struct, frozen=True, kw_only=True):
    """How many rounds a followup has used for a reason, and how many it may use, or None if that is not known."""

    used: int
    allowed: int | None


class FollowupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A followed pull request. `task_id` and `workflow_id` are those of the newest round.

    `waiting` counts what waits for the next round. `question` is the id of the open question, or "". `budget_usd` is
    what all rounds together may cost, or None if the General does not follow its pull requests now.
    """

    id: str
    repo: str
    number: int
    branch: str
    base: str
    head: str
    general: str
    state: FollowupState
    reason: str
    question: str
    rounds: dict[RoundReason, RoundUse]
    waiting: dict[RoundReason, int]
    failing: tuple[str, ...]
    cost_usd: float
    budget_usd: float | None
    task_id: str
    workflow_id: str
    created_at: datetime
    pushed_at: datetime | None
    ends_at: datetime
    ended_at: datetime | None


class FollowupDetails(FollowupSummary, frozen=True, kw_only=True):
    """A followed pull request, and why its last poll could not read a part of it, or ""."""

    poll_problem: str


def summarize_followup(followup: Followup, policies: FollowPolicies) -> FollowupSummary:
    """Return a followup as people see it."""
    policy = policies(followup.general)
    waiting = Counter(entry.reason for entry in followup.waiting)
    return FollowupSummary(
        id=followup.id,
        repo=followup.repo,
        number=followup.number,
        branch=followup.branch,
        base=followup.base,
        head=followup.head,
        general=followup.general,
        state=followup.state,
        reason=followup.reason,
        question=followup.assignment_id if followup.state is FollowupState.WAITING else "",
        rounds={
            reason: RoundUse(
                used=followup.rounds.get(reason, 0), allowed=round_limit(policy, followup, reason) if policy else None
            )
            for reason in RoundReason
        },
        waiting={reason: waiting[reason] for reason in RoundReason if waiting[reason]},
        failing=followup.failing,
        cost_usd=followup.cost_usd,
        budget_usd=budget_of_rounds(policy, followup) if policy else None,
        task_id=followup.assignment_id,
        workflow_id=followup.workflow_id,
        created_at=followup.created_at,
        pushed_at=followup.pushed_at,
        ends_at=followup.ends_at,
        ended_at=followup.ended_at,
    )


def describe_rounds(followup: FollowupSummary) -> str:
    """Return the used and the allowed rounds of each reason, such as `review 1 of 5, checks 0 of 3`."""
    return ", ".join(
        f"{reason} {use.used}" if use.allowed is None else f"{reason} {use.used} of {use.allowed}"
        for reason, use in followup.rounds.items()
        if use.used or use.allowed
    )


def describe_followup(followup: FollowupSummary) -> str:
    """Return why a followup has ended or asks a person, or what waits for its next round."""
    if followup.ended_at:
        return followup.reason
    if followup.question:
        return f"asks a person: {followup.reason}"
    waiting = ", ".join(f"{reason} {count}" for reason, count in followup.waiting.items())
    return f"waits for a round: {waiting}" if waiting else "nothing waits"
