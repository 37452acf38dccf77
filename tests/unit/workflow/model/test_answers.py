"""An answer counts once, for the current attempt and the current placement. Of other answers only the cost counts."""

from typing import ClassVar

import msgspec
import pytest

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import AgentStatus, QueryStatus, TaskStatus, WorkflowStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, cancel, pause, release, resume, start
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.reactions import ANSWERS
from tests.unit.workflow.model.host import agent_of, ask, fail, petition, reconciled, spent, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, without_costs, work


class RunWithForgedAnswers(Run):
    """Applies forged answers before each answer, and repeats it afterwards. None of these may change anything."""

    answered: ClassVar[set[type[answers.HostAnswer]]] = set()

    def receive(self, *received: answers.HostAnswer) -> list[str]:
        names: list[str] = []
        for answer in received:
            self.answered.add(type(answer))
            for forged in ({"epoch": answer.epoch - 1}, {"host": "host-z"}, {"attempt": answer.attempt - 1}):
                self._changes_nothing(msgspec.structs.replace(answer, **forged))
                assert self.ignored
            names += super().receive(answer)
            self._changes_nothing(answer)
        return names

    def _changes_nothing(self, answer: answers.HostAnswer) -> None:
        before, open_before = without_costs(self.workflow), list(self.open)
        assert super().receive(answer) == []
        assert (without_costs(self.workflow), self.open) == (before, open_before)


def test_late_doubled_and_foreign_answers_of_every_kind_change_nothing() -> None:
    RunWithForgedAnswers.answered = set()
    run = RunWithForgedAnswers(template(work("analyse", task(report=True)), work("build", task())), retries=9)
    run.do(start)
    run.fail(commands.PrepareResources)
    run.do(resume, Auto())
    for kind in (commands.StartAgent, commands.SendQuery, commands.GenerateReport, commands.VerifyWork):
        run.until(kind)
        run.fail(kind)
    run.until(commands.TakeCheckpoint)
    run.fail(commands.TakeCheckpoint)
    interrupted(run)
    run.do(resume, FromBase())
    run.fail(commands.RollBack)
    run.do(resume, FromBase())
    run.succeed(commands.RollBack)
    interrupted(run)
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    assert run.succeed(commands.SendQuery) == ["ReportGenerationStarted"]
    sent = run.until(commands.SendQuery)
    run.receive(petition(sent), spent(sent, 0.5), ask(run.take(commands.SendQuery)))
    run.succeed(commands.StopAgent)
    run.do(resume, Continue("the first"))
    run.finish()
    run.do(release)
    run.receive(fail(run.open.pop()))
    run.do(release)
    run.finish()
    assert RunWithForgedAnswers.answered == ANSWERS.keys()


def interrupted(run: Run) -> None:
    """Stop the run at its next query, which gets no answer."""
    run.until(commands.SendQuery)
    run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)


def test_every_answer_that_a_command_can_have_has_a_handler() -> None:
    promised = {answer for contract in commands.COMMANDS.values() for answer in contract.answers}
    assert promised == ANSWERS.keys()


def test_an_answer_of_a_lost_placement_is_ignored_with_its_reason() -> None:
    run = started()
    command = run.take(commands.StartAgent)
    run.do(place, Placement(host="host-b", epoch=2))
    run.receive(*succeed(command))
    assert run.ignored == "host-a, epoch 1 lost the run, which is placed on host-b, epoch 2"


def test_an_answer_to_an_earlier_attempt_is_ignored_with_its_reason() -> None:
    run = started(retries=1)
    run.succeed(commands.StartAgent)
    first = run.take(commands.SendQuery)
    run.receive(fail(first))
    assert run.until(commands.SendQuery).attempt == 2
    run.receive(*succeed(first))
    assert run.ignored == "attempt 1 of query of wf-1-w1-t1 is over, 2 is current"
    assert run.task(0, 0).status is TaskStatus.RUNNING


def test_an_answer_from_before_a_rollback_does_not_count_for_the_query_after_it() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    before = run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, FromBase())
    run.until(commands.SendQuery)
    run.receive(*succeed(before))
    assert run.ignored == "attempt 1 of query of wf-1-w1-t1 is over, 2 is current"


def test_a_second_answer_is_ignored_with_its_reason() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    run.receive(*succeed(sent))
    run.receive(fail(sent))
    assert run.ignored == "query of wf-1-w1-t1 is RESPONDED and does not expect this answer"


def test_an_answer_about_a_removed_task_is_ignored_with_its_reason() -> None:
    run = started()
    answer = answers.QueryResponded(work_id="w", task_id="gone", response="", host="host-a", epoch=1, attempt=1)
    run.receive(answer)
    assert run.ignored == "the run no longer has a query of gone"


def test_a_response_that_arrives_while_the_run_is_paused_is_kept_and_sends_nothing() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    assert run.task(0, 0).query.status is QueryStatus.UNKNOWN
    assert run.receive(*succeed(sent)) == ["TaskCompleted", "WorkStatusChanged"]
    assert (run.workflow.status, run.open) == (WorkflowStatus.PAUSED, [])
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    assert run.take(commands.SendQuery).task_id == "wf-1-w1-t2"


def unknown_query(retries: int = 0) -> tuple[Run, commands.SendQuery]:
    """Return a run that asks its host for the outcome of a query whose agent was ended."""
    run = started(retries=retries)
    run.succeed(commands.StartAgent)
    run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Continue())
    assert run.until(commands.StartAgent).session == "session-1"
    run.succeed(commands.StartAgent)
    command = run.take(commands.SendQuery)
    assert (command.reconcile, command.attempt) == (True, 1)
    return run, command


def test_an_absent_query_is_sent_again_as_the_next_attempt() -> None:
    run, asked = unknown_query()
    run.receive(reconciled(asked, answers.TranscriptFinding.ABSENT))
    command = run.take(commands.SendQuery)
    assert (command.attempt, command.continues, command.reconcile) == (2, False, False)


def test_a_query_that_the_transcript_shows_as_answered_completes_its_task() -> None:
    run, asked = unknown_query()
    assert run.receive(reconciled(asked, answers.TranscriptFinding.ANSWERED)) == [
        "TaskCompleted",
        "WorkStatusChanged",
        "QuerySent",
        "TaskStarted",
    ]
    assert run.task(0, 0).query.response == "transcript#1"


def test_an_unfinished_query_is_continued_in_its_session_as_the_next_attempt() -> None:
    run, asked = unknown_query()
    run.receive(reconciled(asked, answers.TranscriptFinding.UNFINISHED))
    command = run.take(commands.SendQuery)
    assert (command.attempt, command.continues, command.reconcile) == (2, True, False)


@pytest.mark.parametrize("retries", [0, 5])
def test_without_a_transcript_the_run_fails_under_every_policy_and_can_be_resumed(retries: int) -> None:
    run, asked = unknown_query(retries)
    reply = run.receive(reconciled(asked, answers.TranscriptFinding.NO_TRANSCRIPT))
    assert reply == ["TaskFailed", "WorkStatusChanged", "WorkFailed", "WorkflowStopRequested"]
    run.succeed(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.FAILED
    with pytest.raises(IllegalTransition, match="its session is lost"):
        run.do(resume, Continue())
    run.do(resume, Auto())
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_the_result_of_a_query_is_looked_up_only_once() -> None:
    run, _ = unknown_query()
    run.do(modify, Modification(mcp_server_refs=()))
    assert run.open == []


def test_the_lookup_of_a_query_is_repeated_if_the_agent_ends_before_its_answer() -> None:
    run, asked = unknown_query(retries=1)
    run.receive(fail(agent_of(asked.work_id, attempt=2)))
    run.succeed(commands.StartAgent)
    again = run.take(commands.SendQuery)
    assert (again.reconcile, again.attempt, again.agent_attempt) == (True, 1, 3)


def test_a_host_may_reconcile_by_itself_after_a_restart() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    run.receive(reconciled(sent, answers.TranscriptFinding.UNFINISHED))
    assert run.take(commands.SendQuery).continues


def test_a_lookup_by_the_host_during_a_pause_waits_for_the_resume() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.receive(reconciled(sent, answers.TranscriptFinding.NO_TRANSCRIPT))
    assert run.ignored == "the run is PAUSED; a resume checks the query again"


def test_an_answer_after_the_end_of_a_run_is_ignored() -> None:
    run = started()
    run.succeed(commands.StartAgent)
    sent = run.take(commands.SendQuery)
    run.do(cancel)
    run.succeed(commands.InterruptAgent)
    run.receive(*succeed(sent))
    assert run.ignored == "query of wf-1-w1-t1 is CANCELLED and does not expect this answer"
    assert run.work(0).agent.status is AgentStatus.STOPPED
