"""The budget of a run: at the limit it asks for more or fails, and a grant continues the same session."""

import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.resources.template import OverBudget, RunPolicy
from kingdom.workflow.model.run.workflow import Placement, QuestionTopic
from kingdom.workflow.model.status import QueryStatus, ReportStatus, WorkflowStatus
from kingdom.workflow.model.steps.modify import Modification, WorkChange, modify
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, cancel, pause, resume
from kingdom.workflow.model.steps.placement import place
from tests.unit.workflow.model.host import answer_to, ask, budget_spent, fail, reconciled, spent, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work
from tests.unit.workflow.model.walk import resume_with_grant

THREE_TURNS = template(work("build", task("first"), task("second", report=True)))


def running(budget_usd: float | None, over_budget: OverBudget = OverBudget.ASK) -> Run:
    """Return a run with a budget whose first query is with its agent."""
    run = started(THREE_TURNS, policy=RunPolicy(budget_usd=budget_usd, over_budget=over_budget))
    run.succeed(commands.StartAgent)
    return run


def run_over_budget(budget_usd: float = 1.0, cost_usd: float = 1.25) -> Run:
    """Return a run that waits for more budget, because its first turn cost too much."""
    run = running(budget_usd)
    run.receive(budget_spent(run.take(commands.SendQuery), cost_usd))
    run.succeed(commands.StopAgent)
    return run


def test_every_turn_may_cost_the_rest_of_the_budget() -> None:
    run = running(1.0)
    assert run.take(commands.SendQuery).budget_usd == 1.0
    run = running(1.0)
    run.succeed(commands.SendQuery)
    assert run.open[0].budget_usd == 0.75  # type: ignore[attr-defined]
    run.succeed(commands.SendQuery)
    assert run.take(commands.GenerateReport).budget_usd == 0.5


def test_without_a_budget_nothing_limits_a_turn() -> None:
    run = running(None)
    assert run.take(commands.SendQuery).budget_usd is None
    assert not run.workflow.is_over_budget


def test_a_turn_that_costs_too_much_makes_the_run_ask_for_as_much_again() -> None:
    run = run_over_budget()
    question = run.workflow.question
    assert run.status() is WorkflowStatus.AWAITING
    assert question is not None
    assert (question.topic, question.choices) == (QuestionTopic.BUDGET, ("go on", "stop"))
    assert question.text == "This run has cost $1.25 of its budget of $1.00. Should it go on with another $1.00?"
    assert (run.task(0, 0).query.status, run.work(0).failures) == (QueryStatus.PENDING, 0)


def test_continuing_grants_as_much_again_in_the_same_session() -> None:
    run = run_over_budget()
    run.do(resume, Continue("Go on "))
    assert (run.workflow.budget_usd, run.workflow.remaining_usd) == (2.25, 1.0)
    assert run.until(commands.StartAgent).session == "session-1"
    sent = run.until(commands.SendQuery)
    assert (sent.attempt, sent.continues, sent.reply, sent.budget_usd) == (2, True, "", 1.0)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_run_that_lost_its_session_continues_after_its_checkpoint_with_the_granted_budget() -> None:
    run = run_over_budget()
    run.do(place, Placement(host="host-b", epoch=2))
    with pytest.raises(IllegalTransition, match="its session is lost"):
        run.do(resume, Continue("go on"))
    assert run.workflow.budget_usd == 1.0
    run.do(resume_with_grant)
    assert run.workflow.budget_usd == 2.25
    assert run.until(commands.SendQuery).budget_usd == 1.0


def test_stopping_instead_cancels_the_run() -> None:
    run = run_over_budget()
    run.do(resume, Continue("stop"))
    assert (run.status(), run.workflow.reason) == (WorkflowStatus.CANCELLED, "a person stopped it")


@pytest.mark.parametrize("how", [Auto(), FromBase(), Continue(), Continue("well")])
def test_a_run_that_asks_for_more_budget_is_not_resumed_without_it(how: Auto | FromBase | Continue) -> None:
    run = run_over_budget()
    with pytest.raises(IllegalTransition, match=r"over its budget of \$1.00.*'go on', which grants another \$1.00"):
        run.do(resume, how)


def test_a_run_fails_instead_if_its_policy_says_so_and_can_still_be_granted_more() -> None:
    run = running(1.0, OverBudget.STOP)
    run.receive(budget_spent(run.take(commands.SendQuery), 1.0))
    run.succeed(commands.StopAgent)
    assert (run.status(), run.workflow.reason) == (
        WorkflowStatus.FAILED,
        "This run has cost $1.00 of its budget of $1.00",
    )
    run.do(resume, Continue())
    assert run.status() is WorkflowStatus.FAILED
    run.do(resume, Continue("go on"))
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_an_answer_that_used_up_the_budget_counts_and_the_run_asks_before_its_next_turn() -> None:
    run = running(1.0)
    run.receive(answer_to(run.take(commands.SendQuery), answers.QueryResponded, response="r", cost_usd=1.5))
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.AWAITING
    assert run.task(0, 0).query.status is QueryStatus.RESPONDED
    run.do(resume, Continue("go on"))
    assert run.until(commands.SendQuery).task_id == "wf-1-w1-t2"


def test_checks_and_checkpoints_need_no_budget() -> None:
    run = started(template(work("build", task())), policy=RunPolicy(budget_usd=1.0))
    run.succeed(commands.StartAgent)
    run.receive(answer_to(run.take(commands.SendQuery), answers.QueryResponded, response="r", cost_usd=9.0))
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_no_agent_is_started_for_a_turn_that_could_not_be_paid() -> None:
    run = running(1.0)
    run.receive(answer_to(run.take(commands.SendQuery), answers.AgentAsked, question="left?", cost_usd=2.0))
    run.succeed(commands.StopAgent)
    assert run.workflow.reason == "left?"
    names = run.do(resume, Continue("left"))
    assert run.status() is WorkflowStatus.AWAITING
    assert (names[-1], run.open) == ("WorkflowAwaiting", [])
    run.do(resume, Continue("go on"))
    assert run.until(commands.SendQuery).reply == "left"


def test_a_report_that_costs_too_much_is_written_after_a_grant() -> None:
    run = running(1.0)
    run.until(commands.GenerateReport)
    run.receive(budget_spent(run.take(commands.GenerateReport), 0.5))
    run.succeed(commands.StopAgent)
    assert (run.status(), run.task(0, 1).report.status) == (WorkflowStatus.AWAITING, ReportStatus.PENDING)
    run.do(resume, Continue("go on"))
    assert run.until(commands.GenerateReport).budget_usd == 1.0
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_turn_that_reaches_its_budget_while_its_agent_stops_is_looked_up_later() -> None:
    run = running(1.0)
    sent = run.take(commands.SendQuery)
    run.do(pause)
    run.receive(budget_spent(sent, 1.0))
    run.succeed(commands.StopAgent)
    assert (run.status(), run.workflow.question) == (WorkflowStatus.PAUSED, None)
    assert run.task(0, 0).query.status is QueryStatus.UNKNOWN


def test_rounding_errors_do_not_hide_a_used_up_budget() -> None:
    run = running(0.3)
    run.receive(answer_to(run.take(commands.SendQuery), answers.QueryResponded, response="r", cost_usd=0.1))
    run.receive(answer_to(run.take(commands.SendQuery), answers.QueryResponded, response="r", cost_usd=0.2))
    run.succeed(commands.StopAgent)
    assert run.status() is WorkflowStatus.AWAITING


def test_a_turn_is_charged_once_however_often_its_cost_is_reported() -> None:
    run = running(None)
    sent = run.take(commands.SendQuery)
    run.do(pause)
    run.receive(
        spent(sent, 0.5), spent(sent, 0.5), answer_to(sent, answers.QueryFailed, error="stopped", cost_usd=0.75)
    )
    run.succeed(commands.StopAgent)
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    looked_up = run.take(commands.SendQuery)
    run.receive(
        answer_to(looked_up, answers.QueryReconciled, finding=answers.TranscriptFinding.UNFINISHED, cost_usd=0.75)
    )
    assert (run.workflow.cost_usd, run.until(commands.SendQuery).attempt) == (0.75, 2)


def test_a_turn_that_is_cut_off_by_a_cancel_is_counted() -> None:
    run = running(None)
    sent = run.take(commands.SendQuery)
    run.do(cancel)
    run.receive(spent(sent, 0.5))
    run.succeed(commands.InterruptAgent)
    assert (run.status(), run.workflow.cost_usd) == (WorkflowStatus.CANCELLED, 0.5)


def test_a_late_report_changes_nothing_but_the_cost() -> None:
    run = running(None)
    sent = run.take(commands.SendQuery)
    run.do(cancel)
    run.succeed(commands.InterruptAgent)
    run.receive(spent(sent, 0.5))
    assert run.ignored == "turn of wf-1-w1-t1 is CANCELLED and does not expect this answer"
    run.receive(*succeed(sent), fail(sent), ask(sent), reconciled(sent, answers.TranscriptFinding.UNFINISHED))
    assert run.workflow.cost_usd == 0.5


def test_the_cost_of_a_removed_work_stays_with_the_run() -> None:
    run = started(template(work("one", task()), work("two", task("first"), task("second"))))
    run.until(commands.SendQuery, 1)
    run.succeed(commands.SendQuery)
    run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, FromBase())
    run.succeed(commands.RollBack)
    first = run.work(0)
    run.do(modify, Modification(works=(WorkChange(id=first.id, definition=first.definition),)))
    assert (len(run.workflow.works), run.workflow.cost_usd) == (1, 0.5)
