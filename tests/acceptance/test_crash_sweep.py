"""A run continues after a crash at any step of engine or host, and the sweep detects broken variants."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.crash_sweep import steps
from bench.crash_sweep.__main__ import CLAUDE, POINTS_MIN, SCRIPTED
from bench.crash_sweep.ending import Ending, Event, locks_of, processes_of
from bench.crash_sweep.judge import judge
from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import ENGINE, HOST, Point
from bench.crash_sweep.sweep import shuffle_points
from bench.crash_sweep.transcripts import TaskTranscript, read_task_transcripts, read_transcript_cost
from bench.crash_sweep.variants import VARIANTS
from kingdom.soldiers.agents.transcript import append_entry

ROOT = Path(__file__).parents[2]
POINTS = 5
CLAUDE_POINTS = 3

AT_ENGINE = Point(ENGINE, steps.COMMIT_AFTER, 1)
AT_HOST = Point(HOST, steps.AGENT_UPDATE, 1)
AT_AGENT = Point(HOST, steps.AGENT_KILLED, 1)
PLACED = Event(type="WorkflowPlaced", epoch=1)
SENT = Event(type="QuerySent", subject="w1-t1", attempt=1)
ANSWERED = Event(type="QueryResponded", subject="w1-t1", attempt=1, epoch=1)
REPORTED = Event(type="ReportGenerated", subject="w1-t1-report", attempt=1, epoch=1)
DONE = Event(type="TaskCompleted", subject="w1-t1")
STOPPED = Event(type="AgentStopped", subject="w1", attempt=1, epoch=1)
ENDED = Event(type="WorkflowStatusChanged", detail="COMPLETED")
LOST = Event(type="WorkflowDisplaced", epoch=1)
PLACED_AGAIN = Event(type="WorkflowPlaced", epoch=2)
LOOKED_UP = Event(type="QueryReconciled", subject="w1-t1", detail="UNFINISHED", attempt=1, epoch=2)
SENT_AGAIN = Event(type="QuerySent", subject="w1-t1", attempt=2)
ANSWERED_LATER = Event(type="QueryResponded", subject="w1-t1", attempt=2, epoch=2)
TOO_LATE = Event(type="QueryResponded", subject="w1-t1", attempt=1, epoch=1, ignored="host-a, epoch 1 lost the run")
LATE_BILL = Event(type="AgentSpent", subject="w1-t1", attempt=1, epoch=2, ignored="attempt 1 is over")
GONE = Event(type="AgentError", subject="w1", attempt=1, epoch=1)
RETRIED = Event(type="WorkRetried", subject="w1")

REFERENCE = Ending(
    status="COMPLETED",
    reason="",
    trees={"app": "4b825dc after 4 commits, clean"},
    checkpoints={"w1": {"app": "4b825dc"}},
    reports={"w1-t1": "# Report\n"},
    events=[PLACED, SENT, ANSWERED, REPORTED, DONE, STOPPED, ENDED],
    transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 3], answers=1)},
    cost_usd=0.02,
    transcript_cost_usd=0.02,
    leftovers=[],
)
RECOVERED_EVENTS = [PLACED, SENT, LOST, PLACED_AGAIN, LOOKED_UP, SENT_AGAIN, ANSWERED_LATER, REPORTED, DONE, ENDED]
RECOVERED = msgspec.structs.replace(REFERENCE, events=RECOVERED_EVENTS)
DONE_AGAIN = msgspec.structs.replace(
    RECOVERED, transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 3], answers=1, again=1)}
)
FORGIVEN_EVENTS = [PLACED, SENT, GONE, RETRIED, LOOKED_UP, SENT_AGAIN, ANSWERED_LATER, REPORTED, DONE, STOPPED, ENDED]


def with_events(*events: Event) -> Ending:
    return msgspec.structs.replace(RECOVERED, events=list(events))


def without(event: Event) -> Ending:
    return with_events(*(each for each in RECOVERED_EVENTS if each != event))


def with_more(event: Event) -> Ending:
    return with_events(*RECOVERED_EVENTS[:-1], event, RECOVERED_EVENTS[-1])


def sweep(*words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "bench.crash_sweep", *words, "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(url="", directory=tmp_path, seconds=1)
    repository = stage.host_directory / "repositories" / "app.git"
    repository.mkdir(parents=True)
    (stage.host_directory / "host.lock").touch()
    repository.with_suffix(".lock").touch()
    return stage


# On PostgreSQL, only the part sweep_postgres of `make proof` runs this.
@pytest.mark.parametrize("backend", ["files", pytest.param("postgres", marks=pytest.mark.sweep_postgres)])
def test_a_run_continues_after_crashes_at_steps_of_many_kinds(backend: str) -> None:
    code, figures = sweep("--backend", backend, "--points", str(POINTS), "--no-variants")
    found = figures["backends"][backend]
    assert figures["details"] == []
    assert found["finished"] == found["killed"] == POINTS
    assert len(found["killed_by_kind"]) == POINTS
    assert found["points_total"] >= POINTS_MIN[SCRIPTED]
    assert code == 0


@pytest.mark.agents
def test_a_run_of_claude_continues_after_crashes() -> None:
    words = ("--agent", CLAUDE, "--backend", "files", "--works", "1")
    code, figures = sweep(*words, "--points", str(CLAUDE_POINTS), "--no-variants")
    found = figures["backends"]["files"]
    assert (figures["agent"], figures["details"]) == (CLAUDE, [])
    assert found["finished"] == found["killed"] > 0
    assert found["cost_usd_reference"] == 0.04
    assert code == 0


@pytest.mark.variants
@pytest.mark.parametrize("backend", ["files", "postgres"])
def test_every_broken_variant_is_caught(backend: str) -> None:
    code, figures = sweep("--backend", backend, "--points", "0")
    assert figures["backends"][backend]["variants_caught"] == dict.fromkeys(VARIANTS, True)
    assert (code, figures["details"]) == (0, [])


@pytest.mark.variants
def test_the_sweep_fails_with_a_broken_variant() -> None:
    code, figures = sweep("--backend", "files", "--variant", "prompt_again")
    assert figures["ok"] is False
    assert figures["backends"]["files"]["killed"] == 1
    assert figures["backends"]["files"]["findings"] > 0
    assert code == 1


# The part variants of the proof has the broken variants.
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "store",
    [pytest.param("files", marks=pytest.mark.sweep_files), pytest.param("postgres", marks=pytest.mark.sweep_postgres)],
)
def test_a_run_continues_after_a_crash_at_any_step(store: str) -> None:
    code, figures = sweep("--backend", store, "--no-variants")
    assert code == 0, "\n".join(figures["details"])


@pytest.mark.sweep_claude
@pytest.mark.timeout(7200)
def test_a_run_of_claude_continues_after_a_crash_at_many_steps() -> None:
    code, figures = sweep("--agent", CLAUDE)
    assert code == 0, "\n".join(figures["details"])


@pytest.mark.parametrize(
    ("ending", "point"),
    [
        pytest.param(REFERENCE, None, id="no crash"),
        pytest.param(REFERENCE, AT_ENGINE, id="killed engine"),
        pytest.param(REFERENCE, AT_HOST, id="killed host, nothing to repeat"),
        pytest.param(RECOVERED, AT_HOST, id="killed host, query repeated"),
        pytest.param(with_events(*RECOVERED_EVENTS, TOO_LATE), AT_HOST, id="an answer of the killed host"),
        pytest.param(with_events(*FORGIVEN_EVENTS), AT_AGENT, id="killed agent, query repeated"),
        pytest.param(with_more(LATE_BILL), AT_HOST, id="killed host, a cost reported later"),
        pytest.param(DONE_AGAIN, AT_HOST, id="killed host, its last step done again"),
        pytest.param(
            msgspec.structs.replace(RECOVERED, cost_usd=0.03, transcript_cost_usd=0.03),
            AT_HOST,
            id="killed host, one response requested again",
        ),
    ],
)
def test_a_difference_that_a_crash_may_cause_is_accepted(ending: Ending, point: Point | None) -> None:
    assert judge(REFERENCE, ending, point) == []


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(msgspec.structs.replace(RECOVERED, status="RUNNING"), id="no end"),
        pytest.param(msgspec.structs.replace(RECOVERED, trees={"app": "another"}), id="another tree"),
        pytest.param(msgspec.structs.replace(RECOVERED, checkpoints={}), id="no checkpoint"),
        pytest.param(msgspec.structs.replace(RECOVERED, reports={"w1-t1": "another"}), id="another report"),
        pytest.param(msgspec.structs.replace(RECOVERED, leftovers=["process 7 still runs"]), id="something left"),
        pytest.param(
            msgspec.structs.replace(RECOVERED, transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 1, 2, 3], answers=1)}),
            id="a step done twice",
        ),
        pytest.param(
            msgspec.structs.replace(RECOVERED, transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 3], answers=2)}),
            id="two answers",
        ),
        pytest.param(
            msgspec.structs.replace(
                RECOVERED, transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 3], answers=1, again=2)}
            ),
            id="two steps done again",
        ),
        pytest.param(msgspec.structs.replace(RECOVERED, transcript_cost_usd=0.03), id="a cost that was not booked"),
        pytest.param(
            msgspec.structs.replace(RECOVERED, cost_usd=0.04, transcript_cost_usd=0.04),
            id="more than one response repeated",
        ),
        pytest.param(without(DONE), id="a missing event"),
        pytest.param(without(ANSWERED_LATER), id="a query without an answer"),
        pytest.param(with_more(ANSWERED), id="a query with two answers"),
        pytest.param(with_more(DONE), id="a task completed twice"),
        pytest.param(with_more(SENT_AGAIN), id="a query sent twice under one placement"),
        pytest.param(with_more(Event(type="WorkFailed", subject="w1")), id="an unexpected event"),
        pytest.param(
            with_more(Event(type="QueryResponded", subject="w1-t1", ignored="attempt 1 is over")),
            id="an answer ignored without a crash",
        ),
        pytest.param(with_events(PLACED, SENT, ANSWERED, DONE, REPORTED, ENDED), id="another order"),
        pytest.param(with_events(*FORGIVEN_EVENTS), id="an agent that failed although its host was killed"),
        pytest.param(
            with_events(PLACED, SENT, LOST, PLACED_AGAIN, LOOKED_UP, SENT, ANSWERED, REPORTED, DONE, ENDED),
            id="a query repeated as the same attempt",
        ),
    ],
)
def test_a_difference_that_a_crash_must_not_cause_is_found(ending: Ending) -> None:
    assert judge(REFERENCE, ending, AT_HOST) != []


def test_a_killed_engine_must_leave_no_trace_in_the_events() -> None:
    assert judge(REFERENCE, RECOVERED, AT_ENGINE) != []


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(
            msgspec.structs.replace(
                REFERENCE, transcripts={"w1-t1": TaskTranscript(steps=[1, 2, 3], answers=1, again=1)}
            ),
            id="a step done again",
        ),
        pytest.param(msgspec.structs.replace(REFERENCE, cost_usd=0.03, transcript_cost_usd=0.03), id="another cost"),
    ],
)
def test_a_killed_engine_must_leave_no_trace_in_transcripts(ending: Ending) -> None:
    assert judge(REFERENCE, ending, AT_ENGINE) != []


def did(attempt: int, step: int, *, fails: bool = False) -> dict[str, Any]:
    return {"type": "output", "prompt": f"w1-t1#{attempt}", "call": f"toolu_step{step}a0f", "isError": fails}


def answered(attempt: int) -> dict[str, Any]:
    return {"type": "answered", "prompt": f"w1-t1#{attempt}", "answer": "done", "costUsd": 0.01}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([did(1, 3), did(1, 4), answered(1)], TaskTranscript(steps=[3, 4], answers=1), id="in one attempt"),
        pytest.param(
            [did(1, 3), did(2, 3), did(2, 4), answered(2)],
            TaskTranscript(steps=[3, 4], answers=1, again=1),
            id="continued with the last step",
        ),
        pytest.param(
            [did(1, 3), did(1, 4), did(2, 3), did(2, 4)],
            TaskTranscript(steps=[3, 4, 3, 4], answers=0),
            id="started over",
        ),
        pytest.param([did(1, 3), did(1, 3)], TaskTranscript(steps=[3, 3], answers=0), id="twice in one attempt"),
        pytest.param([did(1, 3, fails=True), did(1, 3)], TaskTranscript(steps=[3], answers=0), id="refused at first"),
        pytest.param([answered(1), answered(2)], TaskTranscript(steps=[], answers=2), id="answered twice"),
    ],
)
def test_transcripts_show_completed_steps_and_how_often_a_query_was_answered(
    tmp_path: Path, entries: list[dict[str, Any]], expected: TaskTranscript
) -> None:
    for entry in entries:
        append_entry(tmp_path / "soldier-1.json", entry)
    assert read_task_transcripts(tmp_path, tmp_path / "home") == {"w1-t1": expected}


def test_each_turn_costs_the_amount_that_it_reported_last(tmp_path: Path) -> None:
    for attempt, cost in ((1, 0.01), (1, 0.02), (2, 0.01)):
        entry = {"type": "spent", "prompt": f"w1-t1#{attempt}", "costUsd": cost}
        append_entry(tmp_path / "soldier-1.json", entry)
    assert read_transcript_cost(tmp_path) == pytest.approx(0.03)


def test_a_killed_agent_must_not_change_the_placement_of_its_run() -> None:
    assert judge(REFERENCE, RECOVERED, AT_AGENT) != []


def test_a_leftover_process_is_found(tmp_path: Path) -> None:
    left = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert processes_of(tmp_path).keys() == {left.pid}
    finally:
        left.kill()
        left.wait()
    assert processes_of(tmp_path) == {}


@pytest.mark.parametrize(
    "name",
    ["repositories/app.git/config.lock", "repositories/app.git/refs/heads/a.lock", "runs/wf/trees/.t/git/index.lock"],
)
def test_a_leftover_lock_file_of_git_is_found(stage: Stage, name: str) -> None:
    assert list(locks_of(stage)) == []
    lock = stage.host_directory / name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    assert len(list(locks_of(stage))) == 1


@pytest.mark.parametrize("name", ["host.lock", "repositories/app.lock"])
def test_a_held_lock_is_found(stage: Stage, name: str) -> None:
    with (stage.host_directory / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert len(list(locks_of(stage))) == 1
    assert list(locks_of(stage)) == []


def test_a_small_number_of_crash_points_covers_every_kind() -> None:
    counts = {ENGINE: {steps.COMMIT_BEFORE: 30, steps.COMMIT_AFTER: 30}, HOST: {steps.COMMIT_AFTER: 50}}
    every = shuffle_points(counts, seed=1)
    assert every == shuffle_points(counts, seed=1)
    chosen = every[:6]
    kinds = {(point.role, point.kind) for point in chosen}
    assert (len(chosen), len(set(chosen)), len(kinds)) == (6, 6, 3)
    assert len(set(every)) == 110
