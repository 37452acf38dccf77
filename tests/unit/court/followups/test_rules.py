"""Which round of work on a pull request begins, and when a person is asked instead."""

from datetime import timedelta
from itertools import combinations, product
from typing import Any

import msgspec
import pytest

from kingdom.court.documents import AssignmentStatus, EventStatus, ExternalEvent, Priority
from kingdom.court.followups.records import Followup, RoundReason
from kingdom.court.followups.rules import (
    CHECKS_COMPLETED,
    CLOSED,
    CONFLICT,
    MERGED,
    REVIEW_SUBMITTED,
    AskPerson,
    NoRound,
    RoundDecision,
    StartRound,
    count_round,
    decide_round,
    describe_attempts,
    end_reason,
    is_permitted,
    reason_of,
    unsettled_reasons,
)
from kingdom.court.package import FollowPolicy, RoundLimit
from tests.unit.workflow.model.scene import NOON

REVIEW, CHECKS, CONFLICTS = RoundReason.REVIEW, RoundReason.CHECKS, RoundReason.CONFLICTS
HEAD, OTHER = "a" * 40, "b" * 40
POLICY = FollowPolicy()
FOLLOWUP = Followup(
    id="acme/shop#7",
    repo="acme/shop",
    number=7,
    branch="kingdom/wf-1/shop",
    base="main",
    general="gen-jira",
    assignment_id="task-20261118-001",
    workflow_id="wf-task-20261118-001",
    head=HEAD,
    created_at=NOON,
    pushed_at=NOON,
    ends_at=NOON + timedelta(days=14),
)


def event(kind: str, **payload: Any) -> ExternalEvent:
    return ExternalEvent(
        id=f"evt-github-{kind}-{len(payload)}",
        type=kind,
        source="github",
        repo="acme/shop",
        payload=payload,
        priority=Priority.NORMAL,
        created_at=NOON + timedelta(minutes=1),
        status=EventStatus.PENDING,
    )


def review(state: str = "changes_requested", **more: Any) -> ExternalEvent:
    return event(REVIEW_SUBMITTED, state=state, **more)


def checks(*failing: str, commit: str = HEAD, **more: Any) -> ExternalEvent:
    conclusion, failed = "failure" if failing else "success", [{"name": each} for each in failing]
    return event(CHECKS_COMPLETED, commit=commit, conclusion=conclusion, failing=failed, **more)


def conflict(commit: str = HEAD) -> ExternalEvent:
    return event(CONFLICT, commit=commit, base="main", base_commit=OTHER)


def decide(*waiting: ExternalEvent, policy: FollowPolicy = POLICY, **used: Any) -> RoundDecision:
    return decide_round(msgspec.structs.replace(FOLLOWUP, **used), policy, waiting)


def test_the_push_of_a_person_settles_checks_and_conflicts_of_the_commit_before() -> None:
    assert decide(checks("unit"), conflict(), branch_head=OTHER) == NoRound("a later commit or event has settled it")
    decision = decide(review(), checks("unit"), conflict(), conflict(OTHER), branch_head=OTHER)
    assert isinstance(decision, StartRound)
    assert decision.events == (review(), conflict(OTHER)), "a review and a conflict of the new head start a round"


def test_a_round_that_a_person_overtook_leaves_nothing_unsettled() -> None:
    overtaken = msgspec.structs.replace(FOLLOWUP, branch_head=OTHER)
    reasons = (CHECKS, CONFLICTS)
    assert unsettled_reasons(FOLLOWUP, AssignmentStatus.COMPLETED, reasons, (HEAD, "")) == reasons
    assert unsettled_reasons(overtaken, AssignmentStatus.COMPLETED, reasons, (HEAD, HEAD)) == ()


def test_a_round_without_a_push_leaves_the_conflict_of_a_commit_that_a_person_pushed_before_it() -> None:
    foreign = msgspec.structs.replace(FOLLOWUP, branch_head=OTHER)
    assert unsettled_reasons(foreign, AssignmentStatus.COMPLETED, (CONFLICTS,), (HEAD, OTHER)) == (CONFLICTS,)


NEWS = {REVIEW: review(), CHECKS: checks("unit"), CONFLICTS: conflict()}


@pytest.mark.parametrize("reasons", [each for size in (1, 2, 3) for each in combinations(RoundReason, size)])
def test_waiting_events_of_all_reasons_start_one_round(reasons: tuple[RoundReason, ...]) -> None:
    decision = decide(*(NEWS[reason] for reason in reasons))
    assert isinstance(decision, StartRound)
    assert decision.reasons == reasons
    assert list(decision.events) == [NEWS[reason] for reason in reasons]
    assert decision.failing == (("unit",) if CHECKS in reasons else ())


def test_all_reviews_are_in_the_round_in_their_order() -> None:
    reviews = [review(text=str(number), review_id=number) for number in range(12)]
    decision = decide(*reviews)
    assert isinstance(decision, StartRound)
    assert decision.events == tuple(reviews)


@pytest.mark.parametrize(("reason", "used", "limit"), list(product(RoundReason, range(5), range(1, 4))))
def test_a_round_begins_as_long_as_rounds_of_its_reason_are_left(reason: RoundReason, used: int, limit: int) -> None:
    policy = msgspec.structs.replace(POLICY, **{str(reason): RoundLimit(rounds=limit)})
    decision = decide(NEWS[reason], policy=policy, rounds={reason: used})
    if used < limit:
        assert isinstance(decision, StartRound)
    else:
        assert isinstance(decision, AskPerson)
        assert decision.reason.startswith(f"all {limit} rounds about ")


@pytest.mark.parametrize("reason", RoundReason)
def test_a_person_can_grant_the_rounds_of_the_policy_again(reason: RoundReason) -> None:
    policy = msgspec.structs.replace(POLICY, **{str(reason): RoundLimit(rounds=2)})
    for used, grants in product(range(7), range(3)):
        decision = decide(NEWS[reason], policy=policy, rounds={reason: used}, grants=grants)
        assert isinstance(decision, StartRound) == (used < 2 * (1 + grants)), (used, grants)


@pytest.mark.parametrize(("spent", "other"), list(product(RoundReason, repeat=2)))
def test_rounds_of_one_reason_do_not_use_up_those_of_another(spent: RoundReason, other: RoundReason) -> None:
    decision = decide(NEWS[spent], NEWS[other], rounds={spent: 99})
    if spent is other:
        assert isinstance(decision, AskPerson)
    else:
        assert isinstance(decision, StartRound)
        assert decision.reasons == (other,)


@pytest.mark.parametrize("reason", RoundReason)
def test_with_a_limit_of_zero_nothing_begins_and_no_person_is_asked(reason: RoundReason) -> None:
    policy = msgspec.structs.replace(POLICY, **{str(reason): RoundLimit(rounds=0)})
    assert decide(NEWS[reason], policy=policy) == NoRound(f"follow.{reason}.rounds is 0")


NAMES = ("a", "b", "c")
SETS = [each for size in range(1, 4) for each in combinations(NAMES, size)]


@pytest.mark.parametrize(("before", "after"), list(product(SETS, repeat=2)))
def test_checks_get_another_round_only_if_fewer_of_the_same_fail(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    decision = decide(checks(*after), rounds={CHECKS: 1}, failing=before)
    if set(after) < set(before):
        assert isinstance(decision, StartRound)
        assert decision.failing == after
    else:
        new = [name for name in after if name not in before]
        added = f"checks fail that did not fail before the last round: {', '.join(new)}"
        same = f"the last round repaired none of the failed checks: {', '.join(after)}"
        assert decision == AskPerson(added if new else same)


def test_a_round_about_checks_stores_how_many_tests_the_failed_checks_ran() -> None:
    decision = decide(checks("a", "b", tests={"a": 41, "c": 7}))
    assert isinstance(decision, StartRound)
    assert count_round(FOLLOWUP, decision).tests == {"a": 41}


@pytest.mark.parametrize("now", [0, 40, 41, 42, None])
@pytest.mark.parametrize("after", [(), ("b",)])
def test_a_person_is_asked_if_checks_improve_but_run_fewer_tests(after: tuple[str, ...], now: int | None) -> None:
    tests = {} if now is None else {"a": now}
    decision = decide(checks(*after, tests=tests), rounds={CHECKS: 1}, failing=("a", "b"), tests={"a": 41})
    if now is not None and now < 41:
        reason = f"fewer tests ran than before the last round: a {now} instead of 41"
        assert decision == AskPerson(reason, {"a": now})
    else:
        assert isinstance(decision, StartRound if after else NoRound)


def test_a_person_is_asked_about_fewer_tests_although_the_rounds_or_the_budget_are_used_up() -> None:
    news = checks(tests={"a": 40})
    before: dict[str, Any] = {"failing": ("a",), "tests": {"a": 41}}
    fewer = "fewer tests ran than before the last round: a 40 instead of 41"
    assert decide(news, rounds={CHECKS: 3}, **before) == AskPerson(fewer, {"a": 40})
    decision = decide(news, cost_usd=25.0, **before)
    assert isinstance(decision, AskPerson)
    assert decision.reason.endswith(fewer)
    assert decision.tests == {"a": 40}


def test_a_round_about_reviews_keeps_how_many_tests_the_failed_checks_ran() -> None:
    before: dict[str, Any] = {"failing": ("a",), "tests": {"a": 41}}
    decision = decide(review(), checks(tests={"a": 40}), **before)
    assert isinstance(decision, StartRound)
    assert decision.reasons == (REVIEW,)
    assert count_round(msgspec.structs.replace(FOLLOWUP, **before), decision).tests == {"a": 41}


def test_a_log_without_totals_does_not_hide_how_many_tests_ran_before() -> None:
    decision = decide(checks("a"), failing=("a", "b"), tests={"a": 41, "b": 7})
    assert isinstance(decision, StartRound)
    assert decision.tests == {"a": 41}


def test_a_review_begins_a_round_although_the_failed_checks_stay_the_same() -> None:
    decision = decide(checks("a"), review(), rounds={CHECKS: 1}, failing=("a",))
    assert isinstance(decision, StartRound)
    assert decision.reasons == (REVIEW,)


@pytest.mark.parametrize(("cost", "grants"), list(product((0.0, 19.99, 20.0, 39.99, 40.0), (0, 1))))
def test_no_round_begins_above_the_budget_of_all_rounds(cost: float, grants: int) -> None:
    decision = decide(review(), cost_usd=cost, grants=grants)
    assert isinstance(decision, StartRound) == (cost < 20 * (1 + grants))
    if isinstance(decision, AskPerson):
        assert f"${cost:.2f}" in decision.reason


@pytest.mark.parametrize(("cost", "at", "grants"), list(product((10.0, 20.0, 115.0, 120.0), (5.0, 100.0), (1, 3))))
def test_each_grant_allows_at_least_another_budget(cost: float, at: float, grants: int) -> None:
    decision = decide(review(), cost_usd=cost, grants=grants, granted_at_usd=at)
    assert isinstance(decision, StartRound) == (cost < max(20 * (1 + grants), at + 20))


def test_only_the_newest_result_of_the_last_commit_counts() -> None:
    nothing = NoRound("a later commit or event has settled it")
    assert decide(checks("a", commit=OTHER)) == nothing
    assert decide(checks("a"), checks()) == nothing
    assert decide(checks()) == nothing
    decision = decide(checks("a", "b"), checks("a"), checks("c", commit=OTHER))
    assert isinstance(decision, StartRound)
    assert decision.failing == ("a",)


def test_a_conflict_from_before_the_last_push_is_settled() -> None:
    later = NOON + timedelta(hours=1)
    assert isinstance(decide(conflict(OTHER), pushed_at=later), NoRound)
    assert isinstance(decide(conflict(HEAD), pushed_at=later), StartRound)
    assert isinstance(decide(conflict(OTHER)), StartRound), "a person has pushed to the branch"


@pytest.mark.parametrize("state", ["approved", "commented", "changes_requested", "dismissed"])
@pytest.mark.parametrize("comments", [[], [{"id": 1}]])
def test_a_review_begins_a_round_if_it_requests_changes_or_comments_on_lines(
    state: str, comments: list[dict[str, Any]]
) -> None:
    wanted = state == "changes_requested" or bool(comments)
    assert reason_of(review(state, comments=comments)) == (REVIEW if wanted else None)


def test_other_events_begin_no_round() -> None:
    assert reason_of(event("github.pr.comment", text="please")) is None
    assert decide(event(MERGED), event("github.pr.comment")) == NoRound("a later commit or event has settled it")
    assert (end_reason(MERGED), end_reason(CLOSED)) == ("it was merged", "it was closed without a merge")
    assert end_reason(REVIEW_SUBMITTED) == end_reason(CHECKS_COMPLETED) == end_reason(CONFLICT) == ""


@pytest.mark.parametrize("permission", ["admin", "maintain", "write", "triage", "read", "none", ""])
@pytest.mark.parametrize("login", ["anna", "Anna", "mallory", "helper[bot]"])
def test_without_names_everyone_who_can_write_is_permitted_except_bots(login: str, permission: str) -> None:
    can_write = permission in ("admin", "maintain", "write")
    assert is_permitted(POLICY, login, permission) == (can_write and login != "helper[bot]")
    named = FollowPolicy(people=("anna", "helper[bot]"))
    assert is_permitted(named, login, permission) == (login != "mallory")


def test_the_description_of_attempts_has_rounds_cost_checks_and_run() -> None:
    tried = msgspec.structs.replace(FOLLOWUP, rounds={CHECKS: 3, REVIEW: 1}, failing=("unit", "lint"), cost_usd=4.5)
    assert describe_attempts(tried) == (
        "Rounds so far: 3 about failed checks, 1 about reviews, for $4.50. Checks that failed before the last one:"
        " unit, lint. The newest run is wf-task-20261118-001."
    )
    assert describe_attempts(FOLLOWUP).startswith("Rounds so far: none, for $0.00. The newest run")
