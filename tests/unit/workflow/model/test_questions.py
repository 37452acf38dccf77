"""An agent may ask a person or petition for an action: the run waits for the answer and records the petition."""

import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.run.workflow import Placement, RunQuestion
from kingdom.workflow.model.status import QueryStatus, TaskStatus, WorkflowStatus, WorkStatus
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, cancel, pause, resume
from kingdom.workflow.model.steps.placement import place
from tests.unit.workflow.model.host import answer_to, ask, fail, petition, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work


def queried() -> tuple[Run, commands.SendQuery]:
    """Return a run whose first query is with its agent."""
    run = started()
    run.succeed(commands.StartAgent)
    return run, run.take(commands.SendQuery)


def asked() -> Run:
    """Return a run that waits for the reply of a person."""
    run, sent = queried()
    run.receive(ask(sent, "left or right?", "left", "right"))
    run.succeed(commands.StopAgent)
    return run


def test_a_question_stops_the_agent_and_then_the_run_awaits_a_person() -> None:
    run, sent = queried()
    assert run.receive(ask(sent)) == ["WorkflowStopRequested"]
    assert (run.status(), run.commanded()) == (WorkflowStatus.RUNNING, ["StopAgent"])
    answer_to = run.succeed(commands.StopAgent)
    assert answer_to == ["WorkStatusChanged", "WorkflowStatusChanged", "WorkPaused", "WorkflowAwaiting"]
    assert (run.status(), run.open) == (WorkflowStatus.AWAITING, [])


def test_a_question_is_kept_with_its_choices_and_counts_its_cost() -> None:
    run = asked()
    question = RunQuestion(task_id="wf-1-w1-t1", text="left or right?", choices=("left", "right"))
    assert (run.workflow.question, run.workflow.reason) == (question, "left or right?")
    assert (run.work(0).status, run.work(0).cost_usd) == (WorkStatus.PAUSED, 0.25)
    assert (run.task(0, 0).query.status, run.task(0, 0).query.begun) == (QueryStatus.PENDING, True)


def test_the_reply_continues_the_query_in_its_session() -> None:
    run = asked()
    run.do(resume, Continue("left"))
    assert run.workflow.question is None
    assert run.until(commands.StartAgent).session == "session-1"
    run.succeed(commands.StartAgent)
    sent = run.until(commands.SendQuery)
    assert (sent.task_id, sent.attempt, sent.continues, sent.reply) == ("wf-1-w1-t1", 2, True, "left")
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_an_agent_may_ask_again_and_gets_the_newest_reply() -> None:
    run = asked()
    for reply in ("left", "right"):
        run.do(resume, Continue(reply))
        run.succeed(commands.StartAgent)
        sent = run.take(commands.SendQuery)
        assert (sent.reply, sent.continues) == (reply, True)
        run.receive(ask(sent, "sure?"))
        run.succeed(commands.StopAgent)
    assert (run.status(), run.task(0, 0).query.attempt) == (WorkflowStatus.AWAITING, 3)


def test_a_long_question_and_its_choices_are_shortened() -> None:
    run, sent = queried()
    run.receive(ask(sent, "x" * 10_000, *("y" * 1_000 for _ in range(100))))
    run.succeed(commands.StopAgent)
    assert run.workflow.question == RunQuestion(task_id="wf-1-w1-t1", text="x" * 4_000, choices=("y" * 200,) * 20)
    assert run.workflow.reason == "x" * 4_000


def test_a_task_may_petition_fifty_times_and_the_next_one_again() -> None:
    run, sent = queried()
    for number in range(60):
        run.receive(petition(sent, f"petition-{number}"))
    assert run.ignored == "wf-1-w1-t1 has reached the limit of 50 petitions"
    assert [each.id for each in run.work(0).petitions] == [f"petition-{number}" for number in range(50)]
    run.receive(*succeed(sent))
    run.receive(petition(run.take(commands.SendQuery), "another"))
    assert run.work(0).petitions[-1].id == "another"


def test_a_petition_that_is_too_large_is_ignored_with_the_limit() -> None:
    run, sent = queried()
    large = answer_to(
        sent, answers.AgentPetitioned, petition_id="p", kind="github.comment", body={"text": "x" * 64_000}
    )
    run.receive(large)
    assert run.ignored == "the body of a petition exceeds the limit of 64000 bytes"
    assert run.work(0).petitions == []


@pytest.mark.parametrize("how", [FromBase(), Auto()], ids=["base", "auto"])
def test_a_rollback_removes_the_question_and_the_unfinished_steps(how: FromBase | Auto) -> None:
    run = asked()
    run.do(resume, how)
    run.succeed(commands.RollBack)
    assert run.workflow.question is None
    sent = run.until(commands.SendQuery)
    assert (sent.attempt, sent.continues, sent.reply) == (2, False, "")


def test_a_reply_is_removed_by_a_rollback() -> None:
    run = asked()
    run.do(resume, Continue("left"))
    run.until(commands.SendQuery)
    run.open.clear()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, FromBase())
    assert run.until(commands.SendQuery).reply == ""


def test_a_question_that_races_with_a_pause_is_kept_and_the_run_is_paused() -> None:
    run, sent = queried()
    run.do(pause)
    assert run.receive(ask(sent, "which?")) == []
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.PAUSED
    assert run.workflow.question
    run.do(resume, Continue("this one"))
    assert run.until(commands.SendQuery).reply == "this one"


def test_a_pause_that_races_with_a_question_wins() -> None:
    run, sent = queried()
    run.receive(ask(sent))
    run.do(pause)
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.PAUSED
    assert run.workflow.question


def test_a_question_does_not_prevent_a_requested_cancellation() -> None:
    run, sent = queried()
    run.do(cancel)
    run.receive(ask(sent))
    run.succeed(commands.InterruptAgent)
    assert (run.status(), run.task(0, 0).status) == (WorkflowStatus.CANCELLED, TaskStatus.CANCELLED)


def test_a_question_after_the_stop_was_confirmed_comes_too_late() -> None:
    run, sent = queried()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.receive(ask(sent))
    assert run.ignored == "query of wf-1-w1-t1 is UNKNOWN and does not expect this answer"
    assert run.workflow.question is None


def test_a_run_awaits_a_reply_even_if_its_agent_fails_after_the_question() -> None:
    run, sent = queried()
    run.receive(ask(sent))
    run.receive(fail(run.take(commands.StopAgent)))
    assert (run.status(), run.work(0).agent.error) == (WorkflowStatus.AWAITING, "broken")


def test_a_question_whose_session_is_lost_with_its_host_cannot_be_replied_to() -> None:
    run = asked()
    run.do(place, Placement(host="host-b", epoch=2))
    with pytest.raises(IllegalTransition, match="AWAITING and its session is lost"):
        run.do(resume, Continue("left"))
    run.do(resume, Auto())
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_petition_is_kept_once_and_stops_nothing() -> None:
    run, sent = queried()
    assert run.receive(petition(sent)) == []
    assert run.receive(petition(sent)) == []
    [kept] = run.work(0).petitions
    assert (kept.id, kept.task_id, kept.kind) == ("petition-1", "wf-1-w1-t1", "github.comment")
    assert kept.body == {"pull_request": 7, "text": "done"}
    assert (run.status(), run.open) == (WorkflowStatus.RUNNING, [])


def test_petitions_of_one_query_are_kept_in_their_order() -> None:
    run, sent = queried()
    run.receive(petition(sent, "b"), petition(sent, "a"), petition(sent, "b"))
    assert [kept.id for kept in run.work(0).petitions] == ["b", "a"]


def test_a_petition_after_the_answer_to_its_query_is_ignored() -> None:
    run, sent = queried()
    run.receive(*succeed(sent))
    run.receive(petition(sent))
    assert run.ignored == "query of wf-1-w1-t1 is RESPONDED and does not expect this answer"
    assert run.work(0).petitions == []


def test_a_petition_made_while_the_report_is_written_is_kept() -> None:
    run = started(template(work("build", task(report=True))))
    run.succeed(commands.StartAgent)
    run.succeed(commands.SendQuery)
    writing = run.take(commands.GenerateReport)
    run.receive(petition(writing))
    assert [kept.id for kept in run.work(0).petitions] == ["petition-1"]
    assert type(petition(writing)) in commands.COMMANDS[commands.GenerateReport].answers
    run.receive(*succeed(writing))
    run.receive(petition(writing, "too-late"))
    assert run.ignored == "query of wf-1-w1-t1 is RESPONDED and does not expect this answer"
    assert len(run.work(0).petitions) == 1


def test_a_petition_of_a_lost_placement_is_ignored() -> None:
    run, sent = queried()
    run.do(place, Placement(host="host-b", epoch=2))
    run.receive(petition(sent))
    assert run.ignored == "host-a, epoch 1 lost the run, which is placed on host-b, epoch 2"
    assert run.work(0).petitions == []


def test_petitions_of_an_undone_work_are_removed_with_it() -> None:
    run = started()
    query = run.until(commands.SendQuery)
    run.receive(petition(query, "p-1"))
    assert [kept.id for kept in run.work(0).petitions] == ["p-1"]
    run.fail(commands.SendQuery)
    run.finish()
    run.do(resume, FromBase())
    run.finish()
    assert run.work(0).petitions == []


def test_a_question_without_a_session_cannot_be_replied_to() -> None:
    run = started()
    start = run.take(commands.StartAgent)
    run.receive(answer_to(start, answers.AgentStarted, session=None))
    run.receive(ask(run.take(commands.SendQuery), "which one?"))
    run.finish()
    with pytest.raises(IllegalTransition, match="its session is lost"):
        run.do(resume, Continue(reply="this one"))


def test_a_cancelled_run_has_no_open_question() -> None:
    run = started()
    run.until(commands.SendQuery)
    run.receive(ask(run.take(commands.SendQuery), "which one?"))
    run.finish()
    assert run.workflow.question
    run.do(cancel)
    assert run.workflow.question is None
