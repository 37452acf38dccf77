"""Fault injection into a whole court, in its short form. The checker finds every injected defect."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bench.chaos.__main__ import main
from bench.court.judge import CourtCounts, judge
from bench.court.variants import is_caught
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route

SHORT = ("--system", "--backend", "files", "--no-variants", "--seed", "7", "--json", "-")


def good() -> CourtCounts:
    event = ExternalEvent(
        id="evt-github-1",
        type="github.pr.review_requested",
        source="github",
        repo="acme/shop",
        payload={},
        priority=Priority.NORMAL,
        created_at=utc_now(),
        status=EventStatus.COMPLETED,
        outcome="completed",
        routes=(Route(general="gen-chaos", rule="gen-chaos#1", assignment_id="task-1"),),
    )
    assignment = Assignment(
        id="task-1",
        event_id="evt-github-1",
        target_general="gen-chaos",
        type=event.type,
        payload={},
        priority=Priority.NORMAL,
        created_at=utc_now(),
        status=AssignmentStatus.COMPLETED,
    )
    return CourtCounts(
        events=[event],
        assignments=[assignment],
        comments={1: 1},
        posts={"msg-1": 1},
        messages=["msg-1"],
        sessions=[],
        accepted=0,
        held={},
        open_runs=[],
        open_events=[],
    )


FLAWS: dict[str, tuple[Callable[[CourtCounts], dict[str, Any]], str]] = {
    "an event is lost": (lambda _: {"events": [], "assignments": []}, "0 events were noticed"),
    "an event failed": (
        lambda counts: {"events": [msgspec.structs.replace(counts.events[0], outcome="failed")]},
        "is completed, failed",
    ),
    "an event has no assignment": (
        lambda counts: {"events": [msgspec.structs.replace(counts.events[0], routes=())]},
        "has 0 assignments",
    ),
    "an assignment is doubled": (lambda counts: {"assignments": counts.assignments * 2}, "2 assignments in the store"),
    "a comment is doubled": (lambda _: {"comments": {1: 2}}, "has 2 comments"),
    "a comment is lost": (lambda _: {"comments": {}}, "has 0 comments"),
    "a message is doubled": (lambda _: {"posts": {"msg-1": 2}}, "was posted 2 times"),
    "a message is lost": (lambda _: {"posts": {}}, "was never posted"),
    "a session is left": (lambda _: {"sessions": ["soldier-1"]}, "still registered"),
    "a command is left": (lambda _: {"accepted": 1}, "accepted and not answered"),
    "a slot is held": (lambda _: {"held": {"soldiers": {"task-1": "1"}}}, "still held"),
    "a run is open": (lambda _: {"open_runs": ["wf-1"]}, "still open"),
    "an event is open": (lambda _: {"open_events": ["court.event: 1 pending"]}, "on the bus"),
}


def test_the_judge_has_no_complaints_about_a_good_court() -> None:
    assert judge(good(), 1, []) == []


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_judge_finds_each_flaw(flaw: str) -> None:
    change, words = FLAWS[flaw]
    counts = good()
    broken = CourtCounts(**{name: getattr(counts, name) for name in CourtCounts.__slots__} | change(counts))
    assert any(words in finding for finding in judge(broken, 1, [])), judge(broken, 1, [])


def test_the_judge_finds_a_process_that_was_left() -> None:
    assert any("still runs" in finding for finding in judge(good(), 1, ["7: git gc"]))


@pytest.mark.benches
def test_a_court_that_is_killed_everywhere_performs_each_action_once(capfd: pytest.CaptureFixture[str]) -> None:
    code = main([*SHORT, "--seconds", "12", "--events", "4", "--drain", "200"])
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert code == 0, figures
    killed = figures["backends"]["files"]
    assert (killed["findings"], killed["comments"], killed["assignments"]) == (0, 4, 4)
    assert killed["killed"] >= 3


@pytest.mark.benches
def test_the_bench_fails_if_the_court_leaks_slots(capfd: pytest.CaptureFixture[str]) -> None:
    code = main([*SHORT, "--seconds", "2", "--events", "1", "--drain", "60", "--variant", "leak_slots"])
    captured = capfd.readouterr()
    assert (code, json.loads(captured.out.splitlines()[-1])["ok"]) == (1, False)
    # No other violation is reported. A court that is only slow would also have an open run.
    complaints = [line for line in captured.err.splitlines() if line.startswith("files: ")]
    assert [words for words in complaints if "still" in words and "is still held by" not in words] == []
    assert any("is still held by" in words for words in complaints)


@pytest.mark.long
@pytest.mark.parametrize("variant", ["blind_effects", "lose_events"])
async def test_the_checker_catches_each_broken_court(variant: str) -> None:
    assert await is_caught(variant)
