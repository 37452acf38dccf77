"""The content of the store as rows of the screen."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from kingdom.bus.operations import StreamStats
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.followups.records import FollowupState
from kingdom.court.followups.summary import summarize_followup
from kingdom.court.health_summary import HealthSummary
from kingdom.court.package import FollowPolicy
from kingdom.court.questions import WITHOUT_RUN, HumanQuestion
from kingdom.court.status import (
    CourtStatus,
    HostSummary,
    MoneySummary,
    RoleSummary,
    SlotUse,
    Trouble,
    WaitingSummary,
)
from kingdom.text import plain
from kingdom.top.details import describe_question, describe_queue, list_resume_points
from kingdom.top.rows import (
    COLUMNS,
    Pane,
    PaneRow,
    build_headline,
    build_rows,
    build_summary,
    fit_columns,
    format_count,
    format_span,
    shorten,
)
from kingdom.top.store_client import TopSnapshot
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.model.run.workflow import RunQuestion, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue, FromBase
from tests.unit.court.followups.test_rules import FOLLOWUP
from tests.unit.workflow.model.scene import template

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def a_court_status(**more: Any) -> CourtStatus:
    court_status = CourtStatus(
        at=NOON,
        health=HealthSummary(level="yellow", reason="the disk is nearly full", age_seconds=3),
        roles=(RoleSummary(role="king", silent_seconds=400, is_well=False),),
        money=MoneySummary(spent=1.5, set_aside=2.0, limit=300.0, status=TokenStatus.OK),
        slots=(SlotUse(scope="soldiers", held=2, limit=3),),
        undecided=4,
        waiting=WaitingSummary(count=1000, by_reason={"soldiers is full": 1000}),
        assignments={"pending": 0, "in_progress": 2},
        open_asks=1,
        dead_letters={},
        paused={},
        hosts=(HostSummary(name="box", status=HostStatus.LOST, slots=3, busy=2),),
        troubles=(Trouble(what="events wait for gen-x, which has no package", command="kingdom general list"),),
    )
    return msgspec.structs.replace(court_status, **more)


def a_run(run_id: str = "wf-1", *, age: timedelta = timedelta(minutes=2), **fields: Any) -> Workflow:
    run = Workflow.copied_from(template(), run_id, NOON - age)
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def an_ask(**more: Any) -> HumanQuestion:
    fields = {"id": "task-1", "assignment_id": "task-1", "general": "gen-x", "workflow_id": "wf-task-1"}
    return HumanQuestion(**{**fields, "text": "Which?", "asked_at": NOON, "due_at": NOON + timedelta(days=7), **more})


def texts(rows: Sequence[PaneRow]) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in rows]


def test_a_followed_pull_request_shows_its_rounds_and_can_be_answered() -> None:
    policy = FollowPolicy()
    asks = msgspec.structs.replace(FOLLOWUP, state=FollowupState.WAITING, reason="the last round failed")
    followups = tuple(summarize_followup(each, lambda _: policy) for each in (asks, FOLLOWUP))
    asked = an_ask(id=asks.assignment_id, followup=asks.id)
    snapshot = TopSnapshot(status=a_court_status(followups=followups), asks=[asked])
    first, second = build_rows(Pane.FOLLOWUPS, snapshot)
    assert [cell.text for cell in first.cells] == [
        "acme/shop#7",
        "waiting",
        "review 0 of 5, checks 0 of 3, conflicts 0 of 2",
        "$0.00",
        "14d",
        "asks a person: the last round failed",
    ]
    assert (first.ask, first.run, first.explain_id) == (asked, FOLLOWUP.workflow_id, FOLLOWUP.assignment_id)
    assert second.cells[-1].text == "nothing waits"


def test_the_head_shows_the_health_its_reason_the_money_and_the_queues() -> None:
    light = "".join(cell.text for cell in build_headline(a_court_status()))
    assert light == "● yellow the disk is nearly full, read 3s ago"
    line = "".join(cell.text for cell in build_summary(TopSnapshot(status=a_court_status(), asks=[an_ask()])))
    assert line == ("today $1.50 of $300.00  slots 2/3  questions 1  events 4 undecided, 1000+ waiting  2 in progress")


def test_a_run_shows_its_current_step_or_what_it_waits_for() -> None:
    question = RunQuestion(task_id="t", text="Both?\nReally?")
    runs = [
        a_run(status=WorkflowStatus.RUNNING),
        a_run(status=WorkflowStatus.AWAITING, question=question, general="gen-x"),
        a_run(status=WorkflowStatus.FAILED, reason="it broke", ended_at=NOON - timedelta(minutes=1)),
        a_run(status=WorkflowStatus.CREATED),
    ]
    shown = texts(build_rows(Pane.RUNS, TopSnapshot(status=a_court_status(), runs=runs)))
    assert [row[1] for row in shown] == ["Fix the bug", "gen-x Fix the bug", "Fix the bug", "Fix the bug"]
    assert [row[5:] for row in shown] == [
        ["2m", "analyse: first"],
        ["2m", "asks: Both? Really?"],
        ["1m", "it broke"],
        ["2m", ""],
    ]


def test_the_inbox_has_questions_of_the_court_and_of_runs_that_people_started() -> None:
    question = RunQuestion(task_id="t", text="Which colour?", choices=("red", "blue"))
    own = a_run("wf-own", status=WorkflowStatus.AWAITING, question=question)
    of_court = a_run("wf-task-1", status=WorkflowStatus.AWAITING, question=question, requester="court")
    rows = build_rows(Pane.INBOX, TopSnapshot(status=a_court_status(), runs=[own, of_court], asks=[an_ask()]))
    assert [(row.key, row.run, row.explain_id) for row in rows] == [
        ("task-1", "wf-task-1", "task-1"),
        ("wf-own", "wf-own", "wf-own"),
    ]
    assert texts(rows)[1][3:] == ["Which colour?", "red / blue"]
    assert rows[0].ask == an_ask()


def test_a_question_about_a_petition_belongs_to_no_run() -> None:
    (row,) = build_rows(Pane.INBOX, TopSnapshot(status=a_court_status(), asks=[an_ask(id="pet-1", petition="pet-1")]))
    assert (row.key, row.run, row.explain_id) == ("pet-1", "", "task-1")


def test_a_question_about_a_followup_belongs_to_no_run() -> None:
    asked = an_ask(workflow_id=WITHOUT_RUN, followup=FOLLOWUP.id)
    (row,) = build_rows(Pane.INBOX, TopSnapshot(status=a_court_status(), asks=[asked]))
    assert (row.run, row.explain_id, row.ask) == ("", "task-1", asked)


def test_queues_show_how_much_waits_and_why() -> None:
    stream = StreamStats(
        stream="court.event", pending=10_000, processing=2, dead=1, oldest_pending_seconds=90, paused=None
    )
    shown = texts(build_rows(Pane.QUEUES, TopSnapshot(status=a_court_status(), streams=[stream])))
    assert shown[0] == ["court.event", "10000+", "2", "1", "2m", "dead letters: enter shows them"]
    assert shown[1] == ["waiting events", "1000+", "", "", "", "soldiers is full"]
    (line,) = describe_queue([stream], [])
    assert line.plain == "10000 waiting, the oldest for 2m; 2 in progress; 1 dead"


def test_a_count_shows_that_there_are_more() -> None:
    rows = build_rows(Pane.RUNS, TopSnapshot(status=a_court_status(), runs=[a_run()]))
    assert (format_count(rows), format_count(rows, is_truncated=True)) == ("1", "1+")


def test_health_shows_first_what_needs_a_person() -> None:
    shown = texts(build_rows(Pane.HEALTH, TopSnapshot(status=a_court_status())))
    assert shown[0][2] == "events wait for gen-x, which has no package → kingdom general list"
    assert shown[1] == ["role king", "silent", "last heartbeat 7m ago"]
    assert shown[2][:2] == ["machine box", "LOST"]


def test_a_row_is_found_by_all_of_its_words_in_any_order_and_case() -> None:
    run = a_run(status=WorkflowStatus.FAILED, reason="Disk full")
    (row,) = build_rows(Pane.RUNS, TopSnapshot(status=a_court_status(), runs=[run]))
    assert row.matches("FULL disk failed wf-1")
    assert not row.matches("full disk running")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_columns_fill_a_screen_and_no_more(width: int) -> None:
    for columns in COLUMNS.values():
        widths = fit_columns(columns, width)
        assert width - len(columns) <= sum(widths) + len(columns) <= width
        assert min(widths) >= 5


def test_text_of_strangers_is_one_line_without_control_characters() -> None:
    seen = "a b \\x1b[31mc\\x07\\u202e\\x00\\u200bd \N{SNOWMAN} [b]e[/b]"
    assert plain("a\nb\t\x1b[31mc\x07\u202e\x00\u200bd \N{SNOWMAN} [b]e[/b]") == seen
    assert len(shorten("x" * 10_000)) == 500


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "-"), (-1, "0s"), (59, "59s"), (90, "2m"), (7200, "2h"), (200_000, "2d")]
)
def test_a_span_is_shown_in_a_few_letters(seconds: float | None, words: str) -> None:
    assert format_span(seconds) == words


def test_a_run_can_continue_in_its_session_only_while_it_has_one() -> None:
    paused, failed = a_run(status=WorkflowStatus.PAUSED), a_run(status=WorkflowStatus.FAILED)
    assert [how for _, how in list_resume_points(paused)] == [Continue(), FromBase()]
    assert [how for _, how in list_resume_points(failed)] == [FromBase()]


def test_a_question_is_shown_with_everything_that_an_answer_needs() -> None:
    shown = [line.plain for line in describe_question(an_ask(text="One?\n[b]Two[/b]?", people=("anna",), default="no"))]
    assert shown[:2] == ["One?", "[b]Two[/b]?"]
    assert "may answer  anna" in shown
    assert "default     no" in shown
