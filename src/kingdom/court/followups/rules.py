"""Decide whether a round of work on a followed pull request begins. This module does no I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kingdom.court.documents import AssignmentStatus, ExternalEvent
from kingdom.court.followups.records import Followup, RoundReason
from kingdom.court.package import FollowPolicy

REVIEW_SUBMITTED = "github.pr.review_submitted"
CHECKS_COMPLETED = "github.checks.completed"
CONFLICT = "github.pr.conflict"
MERGED = "github.pr.merged"
CLOSED = "github.pr.closed"
CHANGES_REQUESTED = "changes_requested"
SUCCESS, FAILURE = "success", "failure"
# Why an event that waited starts no round.
SETTLED = "a later commit or event has settled it"
# The outcome of an event whose checks are run again, and its reason.
RERUN, RERUN_REASON = "rerun", "its cancelled and timed-out checks are run again once"
WRITERS = frozenset({"admin", "maintain", "write"})
_BOT = "[bot]"
_ENDS = {MERGED: "it was merged", CLOSED: "it was closed without a merge"}
_SUBJECTS = {
    RoundReason.REVIEW: "reviews",
    RoundReason.CHECKS: "failed checks",
    RoundReason.CONFLICTS: "conflicts with the base branch",
}


@dataclass(frozen=True, slots=True)
class StartRound:
    """A round begins because of `events`.

    `failing` are the checks that fail before it, and `tests` is how many tests they ran. `kept` are the events that
    continue to wait, because no other round may begin for their reason. `budget_usd` is what is left for all rounds
    together.
    """

    reasons: tuple[RoundReason, ...]
    events: tuple[ExternalEvent, ...]
    failing: tuple[str, ...] = ()
    tests: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[ExternalEvent, ...] = ()
    budget_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class AskPerson:
    """No round may begin without a person, because of `reason`. `tests` are the numbers of tests that it names."""

    reason: str
    tests: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoRound:
    """There is nothing to do, because of `reason`."""

    reason: str


RoundDecision = StartRound | AskPerson | NoRound


def is_permitted(policy: FollowPolicy, login: str, permission: str, teams: Collection[str] = ()) -> bool:
    """Return whether a person's review can begin a round.

    The `permission` of the person, and the `teams` of the policy with this member, are from GitHub's API, never from an
    event.
    """
    if policy.people:
        return bool(teams) or login.lower() in {name.lower() for name in policy.people}
    return permission in WRITERS and not login.endswith(_BOT)


def end_reason(event_type: str) -> str:
    """Return why an event of this type ends a followup, or ""."""
    return _ENDS.get(event_type, "")


def reason_of(event: ExternalEvent) -> RoundReason | None:
    """Return the reason of the round that an event can begin, whatever its followup, or None."""
    if event.type == REVIEW_SUBMITTED:
        asks = event.payload.get("state") == CHANGES_REQUESTED or bool(event.payload.get("comments"))
        return RoundReason.REVIEW if asks else None
    if event.type == CHECKS_COMPLETED:
        return RoundReason.CHECKS if event.payload.get("conclusion") == FAILURE else None
    return RoundReason.CONFLICTS if event.type == CONFLICT else None


def checks_to_rerun(followup: Followup, event: ExternalEvent) -> list[dict[str, Any]]:
    """Return the checks of an event to run again before they count as failed.

    This happens once for each commit that Kingdom pushed, and only if every failed check was cancelled or timed out.
    """
    interrupted, failing = event.payload.get("interrupted") or [], event.payload.get("failing") or []
    is_new = event.payload.get("commit") == followup.head != followup.rerun_head
    if event.type != CHECKS_COMPLETED or not is_new or followup.has_foreign_head or len(interrupted) < len(failing):
        return []
    return list(interrupted)


def is_replaced(older: ExternalEvent, newer: ExternalEvent, head: str) -> bool:
    """Return whether a newer event about checks or a conflict replaces a waiting event of the same type."""
    if older.type != newer.type or older.type == REVIEW_SUBMITTED:
        return False
    # An event about the head of the branch is kept if the newer event is about another commit.
    commit = older.payload.get("commit")
    return commit == newer.payload.get("commit") or commit != head


def fewer_tests(followup: Followup, events: Iterable[ExternalEvent]) -> dict[str, int]:
    """Return the checks that ran fewer tests than before the last round about checks, with their new numbers."""
    now = {name: count for event in events for name, count in _tests(event).items()}
    return {name: now[name] for name, before in sorted(followup.tests.items()) if now.get(name, before) < before}


def failing_names(events: Iterable[ExternalEvent]) -> tuple[str, ...]:
    """Return the sorted names of the failed checks in events."""
    checks: list[Any] = [each for event in events for each in event.payload.get("failing") or ()]
    return tuple(sorted({str(each["name"]) for each in checks}))


def decide_round(followup: Followup, policy: FollowPolicy, waiting: Sequence[ExternalEvent]) -> RoundDecision:
    """Decide about the events that wait for a round, the oldest first. The caller starts one round at a time."""
    current = _current_events(followup, waiting)
    reasons = [reason for reason in RoundReason if current[reason]]
    wanted = [reason for reason in reasons if round_limit(policy, followup, reason)]
    if not wanted:
        switched_off = ", ".join(f"follow.{reason}.rounds is 0" for reason in reasons)
        return NoRound(switched_off or SETTLED)
    checks = current[RoundReason.CHECKS]
    budget = budget_of_rounds(policy, followup) - followup.cost_usd
    if budget <= 0:
        limit = f"its rounds have cost ${followup.cost_usd:.2f}, and follow.budget_usd is the limit"
        return AskPerson(
            "; ".join(filter(None, (limit, _why_fewer_tests(followup, checks)))), fewer_tests(followup, checks)
        )
    refusals = {reason: _why_not(followup, policy, reason, current[reason]) for reason in wanted}
    allowed = tuple(reason for reason in wanted if not refusals[reason])
    if not allowed:
        return AskPerson("; ".join(refusals.values()), fewer_tests(followup, checks))
    events = tuple(event for reason in allowed for event in current[reason])
    kept = tuple(event for reason in wanted if reason not in allowed for event in current[reason])
    failing = failing_names(checks)
    # A log may not show how many tests ran. Then the earlier number counts.
    tests = followup.tests | {name: count for each in checks for name, count in _tests(each).items()}
    tests = {name: count for name, count in tests.items() if name in failing}
    return StartRound(allowed, events, failing, tests, kept, budget)


def count_round(followup: Followup, start: StartRound) -> Followup:
    """Return the followup with a round counted, and with what the round is about."""
    used = {reason: followup.rounds.get(reason, 0) + (reason in start.reasons) for reason in RoundReason}
    return msgspec.structs.replace(
        followup,
        rounds={reason: count for reason, count in used.items() if count},
        failing=start.failing if RoundReason.CHECKS in start.reasons else followup.failing,
        tests=dict(start.tests) if RoundReason.CHECKS in start.reasons else followup.tests,
    )


def unsettled_reasons(
    followup: Followup, status: AssignmentStatus, reasons: Collection[str], heads: tuple[str, str]
) -> tuple[RoundReason, ...]:
    """Return the reasons that a round did not settle. `heads` are `head` and `branch_head` at its start.

    A failed round settled nothing. Without a push of Kingdom or of a person during the round, the checks fail and the
    branches conflict as before.
    """
    if status is AssignmentStatus.FAILED:
        return tuple(RoundReason(each) for each in reasons)
    head, branch_head = heads
    if followup.head != head or followup.branch_head not in ("", branch_head, head):
        return ()
    return tuple(each for each in (RoundReason.CHECKS, RoundReason.CONFLICTS) if each in reasons)


def why_ask_after_round(
    followup: Followup, status: AssignmentStatus, reason: str, unsettled: Collection[RoundReason]
) -> str:
    """Return why a person is asked after a round, or ""."""
    if status is AssignmentStatus.FAILED:
        return f"the last round failed: {reason}"
    if unsettled and not followup.waiting:
        subjects = " and ".join(_SUBJECTS[each] for each in unsettled)
        return f"the last round about {subjects} ended without a push"
    return ""


def describe_attempts(followup: Followup) -> str:
    """Return what was tried so far, for the person who decides whether to go on."""
    rounds = [f"{count} about {_SUBJECTS[reason]}" for reason, count in followup.rounds.items() if count]
    tried = f"Rounds so far: {', '.join(rounds) or 'none'}, for ${followup.cost_usd:.2f}."
    failing = f" Checks that failed before the last one: {', '.join(followup.failing)}." if followup.failing else ""
    return f"{tried}{failing} The newest run is {followup.workflow_id}."


def budget_of_rounds(policy: FollowPolicy, followup: Followup) -> float:
    """Return what all rounds may cost. Each grant allows at least one more budget."""
    granted = followup.granted_at_usd + policy.budget_usd if followup.grants else 0.0
    return max(policy.budget_usd * (1 + followup.grants), granted)


def round_limit(policy: FollowPolicy, followup: Followup, reason: RoundReason) -> int:
    """Return how many rounds a followup may use for a reason."""
    limits = {
        RoundReason.REVIEW: policy.review,
        RoundReason.CHECKS: policy.checks,
        RoundReason.CONFLICTS: policy.conflicts,
    }
    return limits[reason].rounds * (1 + followup.grants)


def _current_events(
    followup: Followup, waiting: Sequence[ExternalEvent]
) -> dict[RoundReason, tuple[ExternalEvent, ...]]:
    """Return the events by reason, without those that a later commit or event has settled."""
    reviews = tuple(each for each in waiting if reason_of(each) is RoundReason.REVIEW)
    results = [] if followup.has_foreign_head else [each for each in waiting if each.type == CHECKS_COMPLETED]
    checks = [each for each in results if each.payload.get("commit") == followup.head]
    conflicts = [each for each in waiting if each.type == CONFLICT and not _is_settled(each, followup)]
    return {
        RoundReason.REVIEW: reviews,
        RoundReason.CHECKS: tuple(each for each in checks[-1:] if reason_of(each) or fewer_tests(followup, [each])),
        RoundReason.CONFLICTS: tuple(conflicts[-1:]),
    }


def _is_settled(conflict: ExternalEvent, followup: Followup) -> bool:
    """Return whether a later push of Kingdom or of a person may have resolved a conflict."""
    commit = conflict.payload.get("commit")
    if followup.branch_head and commit != followup.branch_head:
        return True
    return commit != followup.head and followup.pushed_at is not None and conflict.created_at < followup.pushed_at


def _why_not(followup: Followup, policy: FollowPolicy, reason: RoundReason, events: tuple[ExternalEvent, ...]) -> str:
    """Return why no other round may begin for a reason, or ""."""
    limit = round_limit(policy, followup, reason)
    if reason is RoundReason.CHECKS and (fewer := _why_fewer_tests(followup, events)):
        return fewer
    if followup.rounds.get(reason, 0) >= limit:
        return f"all {limit} rounds about {_SUBJECTS[reason]} are used"
    return _why_no_progress(followup.failing, failing_names(events)) if reason is RoundReason.CHECKS else ""


def _why_fewer_tests(followup: Followup, events: Iterable[ExternalEvent]) -> str:
    """Return which checks ran fewer tests than before the last round about checks, or ""."""
    fewer = [f"{name} {now} instead of {followup.tests[name]}" for name, now in fewer_tests(followup, events).items()]
    return f"fewer tests ran than before the last round: {', '.join(fewer)}" if fewer else ""


def _tests(event: ExternalEvent) -> dict[str, int]:
    """Return how many tests each check ran. Events of earlier versions do not have it."""
    found: dict[str, int] = event.payload.get("tests") or {}
    return found


def _why_no_progress(before: Collection[str], after: Collection[str]) -> str:
    """Return why the last round made no progress with the failed checks, or ""."""
    if not before or set(after) < set(before):
        return ""
    if new := [name for name in after if name not in before]:
        return f"checks fail that did not fail before the last round: {', '.join(new)}"
    return f"the last round repaired none of the failed checks: {', '.join(after)}"
