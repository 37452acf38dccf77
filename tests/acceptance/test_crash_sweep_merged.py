"""A court sees a pull request through until it is merged, although each of its roles is killed at any step."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from bench.court.until_merged import ANSWERS, COST, MERGED_TEXT
from bench.crash_sweep.courses import MERGED
from bench.crash_sweep.merged.ending import MergedEnding, judge_merged
from bench.crash_sweep.merged.variants import MERGED_VARIANTS
from bench.crash_sweep.steps import COMMIT_AFTER, Steps
from bench.crash_sweep.sweep import one_each
from kingdom.court.followups.records import Followup, FollowupState, RoundReason
from tests.acceptance.test_crash_sweep import sweep

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FOLLOWUP = Followup(
    id="acme/followed#1",
    repo="acme/followed",
    number=1,
    branch="kingdom/wf-1/write-a-text",
    base="main",
    general="gen-follow",
    assignment_id="task-4",
    workflow_id="wf-task-4",
    head="third",
    created_at=NOW,
    ends_at=NOW + timedelta(days=14),
    state=FollowupState.ENDED,
    reason="it was merged",
    rounds=dict.fromkeys(RoundReason, 1),
    cost_usd=3 * COST,
)
ENDING = MergedEnding(
    followup=FOLLOWUP,
    effects={
        "POST git ref": 1,
        "POST pull request": 1,
        "mutation updateRefs": 3,
        "POST review comment reply": 3,
        "POST issue comment": 1,
        "PATCH issue comment": 2,
    },
    pushed=["first", "second", "third"],
    asked=[9, 10, 11],
    answers=list(zip((9, 10, 11), ANSWERS, strict=True)),
    summary="Work on acme/followed#1: conflicts",
    text=MERGED_TEXT.strip(),
    lost=[],
    events={"github.pr.merged": 1},
    tasks=["github.followup completed"],
    leftovers=[],
)


def with_effect(name: str, count: int) -> MergedEnding:
    return msgspec.structs.replace(ENDING, effects={**ENDING.effects, name: count})


def with_followup(**changes: object) -> MergedEnding:
    return msgspec.structs.replace(ENDING, followup=msgspec.structs.replace(FOLLOWUP, **changes))


def test_a_course_in_which_everything_happened_once_is_no_complaint() -> None:
    assert judge_merged(ENDING, ENDING) == []


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(with_effect("mutation updateRefs", 4), id="a push repeated"),
        pytest.param(with_effect("POST review comment reply", 4), id="a reply repeated"),
        pytest.param(with_effect("POST issue comment", 2), id="a second summary"),
        pytest.param(with_effect("PATCH issue comment", 3), id="a summary edited again"),
        pytest.param(with_effect("PATCH issue comment", 1), id="a summary not edited"),
        pytest.param(with_effect("POST pull request", 2), id="a second pull request"),
        pytest.param(with_followup(rounds={RoundReason.REVIEW: 1}), id="rounds not counted"),
        pytest.param(with_followup(rounds=dict.fromkeys(RoundReason, 2)), id="rounds counted twice"),
        pytest.param(with_followup(state=FollowupState.WAITING), id="a followup that did not end"),
        pytest.param(with_followup(reason="its 14 days are over"), id="another end"),
        pytest.param(with_followup(head="second"), id="a push that was not recorded"),
        pytest.param(with_followup(cost_usd=2 * COST), id="a cost that was not booked"),
        pytest.param(msgspec.structs.replace(ENDING, pushed=["first", "third", "third"]), id="a commit pushed twice"),
        pytest.param(msgspec.structs.replace(ENDING, answers=ENDING.answers[:2]), id="a thread without an answer"),
        pytest.param(msgspec.structs.replace(ENDING, text="one"), id="another text"),
        pytest.param(msgspec.structs.replace(ENDING, lost=["1f0e"]), id="a foreign commit lost"),
        pytest.param(msgspec.structs.replace(ENDING, events={"github.pr.merged": 2}), id="an event told twice"),
        pytest.param(msgspec.structs.replace(ENDING, tasks=ENDING.tasks * 2), id="a second round"),
        pytest.param(msgspec.structs.replace(ENDING, leftovers=["quota is still held"]), id="something left"),
    ],
)
def test_a_course_that_lost_or_repeated_something_is_found(ending: MergedEnding) -> None:
    assert judge_merged(ENDING, ending) != []


def test_each_distinct_step_is_one_point(tmp_path: Path) -> None:
    counter = Steps("king", None, tmp_path / "note", by_label=True)
    for label in ("round", "round", "end"):
        counter.reach(COMMIT_AFTER, label)
    points = one_each({"king": counter.counts}, seed=1)
    assert points == one_each({"king": counter.counts}, seed=1)
    assert sorted(point.kind for point in points) == [f"{COMMIT_AFTER}: end", f"{COMMIT_AFTER}: round"]


@pytest.mark.variants
def test_every_broken_variant_of_followups_is_caught() -> None:
    code, figures = sweep("--course", MERGED, "--backend", "files", "--points", "0")
    assert figures["backends"]["files"]["variants_caught"] == dict.fromkeys(MERGED_VARIANTS, True)
    assert (code, figures["details"]) == (0, [])


@pytest.mark.variants
def test_a_sweep_of_broken_followups_fails() -> None:
    code, figures = sweep("--course", MERGED, "--backend", "files", "--variant", "push_again")
    assert figures["ok"] is False
    assert "mutation updateRefs happened 4 times instead of 3" in figures["details"][0]
    assert code == 1


# The part variants of the proof has the broken variants.
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "store",
    [
        pytest.param("files", marks=pytest.mark.sweep_merged_files),
        pytest.param("postgres", marks=pytest.mark.sweep_merged_postgres),
    ],
)
def test_a_pull_request_is_seen_through_after_a_crash_at_any_step(store: str) -> None:
    code, figures = sweep("--course", MERGED, "--backend", store, "--no-variants")
    assert code == 0, "\n".join(figures["details"])
