"""A usage limit of the vendor parks a run until it ends; a run with a looping agent asks a person once."""

from datetime import timedelta

import pytest

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.messages.events import WorkflowAwaiting
from kingdom.workflow.model.run.workflow import QuestionTopic
from kingdom.workflow.model.status import QueryStatus, ReportStatus, WorkflowStatus
from kingdom.workflow.model.steps.operations import Auto, Continue, cancel, resume
from tests.unit.workflow.model.host import looping, throttled
from tests.unit.workflow.model.scene import NOON, Run, started, task, template, work

LATER = NOON + timedelta(hours=3)


def queried() -> tuple[Run, commands.SendQuery]:
    """Return a run whose first query is with its agent."""
    run = started(template(work("build", task(report=True))))
    run.succeed(commands.StartAgent)
    return run, run.take(commands.SendQuery)


def parked() -> Run:
    """Return a run that waits for its vendor."""
    run, sent = queried()
    run.receive(throttled(sent, LATER))
    run.succeed(commands.StopAgent)
    return run


def test_a_limit_of_the_vendor_parks_the_run_with_reason_and_time_and_asks_no_person() -> None:
    run = parked()
    assert (run.status(), run.workflow.parked_until) == (WorkflowStatus.AWAITING, LATER)
    assert run.workflow.reason == "usage limit; it goes on by itself at 2026-11-15 15:00 UTC"
    assert (run.workflow.question, run.work(0).failures) == (None, 0)
    [awaits] = [event for event in run.published if isinstance(event, WorkflowAwaiting)]
    assert awaits.until == LATER


def test_a_parked_run_continues_the_query_in_its_session() -> None:
    run = parked()
    run.do(resume, Continue())
    assert run.workflow.parked_until is None
    assert run.until(commands.StartAgent).session == "session-1"
    sent = run.until(commands.SendQuery)
    assert (sent.attempt, sent.continues) == (2, True)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_report_can_be_parked_too() -> None:
    run, sent = queried()
    run.open.append(sent)
    run.succeed(commands.SendQuery)
    run.receive(throttled(run.take(commands.GenerateReport), LATER))
    run.succeed(commands.StopAgent)
    assert (run.status(), run.task(0, 0).report.status) == (WorkflowStatus.AWAITING, ReportStatus.PENDING)
    run.do(resume, Continue())
    assert run.finish().status is WorkflowStatus.COMPLETED


def parked_again(run: Run, times: int) -> None:
    """Continue a parked run until it is parked again."""
    for _ in range(times):
        assert (run.status(), run.workflow.parked_until, run.workflow.question) == (
            WorkflowStatus.AWAITING,
            LATER,
            None,
        )
        run.do(resume, Continue())
        run.until(commands.SendQuery)
        run.receive(throttled(run.take(commands.SendQuery), LATER))
        run.succeed(commands.StopAgent)


def test_after_five_parkings_without_an_answer_a_person_is_asked_and_the_count_starts_over() -> None:
    run = parked()
    parked_again(run, 5)
    question = run.workflow.question
    assert question is not None
    assert question.text.startswith(
        "it has waited 5 times for its vendor without an answer: usage limit. Should it go on"
    )
    assert (run.status(), run.workflow.parked_until, question.topic) == (
        WorkflowStatus.AWAITING,
        None,
        QuestionTopic.LOOP,
    )
    run.do(resume, Continue("go on"))
    run.until(commands.SendQuery)
    run.receive(throttled(run.take(commands.SendQuery), LATER))
    run.succeed(commands.StopAgent)
    parked_again(run, 4)
    assert (run.workflow.parked_until, run.workflow.question) == (LATER, None)


def test_an_answer_of_the_agent_resets_the_count_of_parkings() -> None:
    run = parked()
    parked_again(run, 4)
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    run.succeed(commands.SendQuery)
    run.receive(throttled(run.take(commands.GenerateReport), LATER))
    run.succeed(commands.StopAgent)
    assert (run.workflow.parked_until, run.workflow.question) == (LATER, None)


def test_a_cancelled_run_is_no_longer_parked() -> None:
    run = parked()
    run.do(cancel)
    assert (run.status(), run.workflow.parked_until) == (WorkflowStatus.CANCELLED, None)


def run_with_looping_agent() -> Run:
    """Return a run that asks about an agent that loops."""
    run, sent = queried()
    run.receive(looping(sent))
    run.succeed(commands.StopAgent)
    return run


def test_a_person_is_asked_about_an_agent_that_loops() -> None:
    run = run_with_looping_agent()
    question = run.workflow.question
    assert question is not None
    assert (run.status(), question.topic, question.choices) == (
        WorkflowStatus.AWAITING,
        QuestionTopic.LOOP,
        ("go on", "stop"),
    )
    assert question.text.startswith("the agent ran `ls` 8 times in a row. Should it go on, or stop?")


@pytest.mark.parametrize("reply", ["go on", "look into src first"])
def test_the_answer_of_the_person_is_passed_to_the_agent(reply: str) -> None:
    run = run_with_looping_agent()
    run.do(resume, Continue(reply))
    sent = run.until(commands.SendQuery)
    assert (sent.reply, sent.continues) == (reply, True)


def test_stop_ends_the_run() -> None:
    run = run_with_looping_agent()
    run.do(resume, Continue("STOP"))
    assert run.status() is WorkflowStatus.CANCELLED


def test_an_agent_that_loops_again_fails() -> None:
    run = run_with_looping_agent()
    run.do(resume, Continue("go on"))
    run.until(commands.SendQuery)
    run.receive(looping(run.take(commands.SendQuery)))
    run.succeed(commands.StopAgent)
    assert (run.status(), run.task(0, 0).query.status) == (WorkflowStatus.FAILED, QueryStatus.FAILED)
    assert run.workflow.reason == "the agent ran `ls` 8 times in a row"


def test_a_person_is_asked_again_about_a_loop_after_a_rollback() -> None:
    run = run_with_looping_agent()
    run.do(resume, Auto())
    run.until(commands.SendQuery)
    run.receive(looping(run.take(commands.SendQuery)))
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.AWAITING
