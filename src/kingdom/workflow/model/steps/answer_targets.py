"""Which part of a run an answer is for; None, with the reason noted, when it came late, twice or from elsewhere."""

from enum import StrEnum
from typing import Any, Protocol

from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Resumption
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    VerificationStatus,
    WorkTreeStatus,
)
from kingdom.workflow.model.steps.step import Step

AgentAnswer = answers.WorkSpaceCreated | answers.AgentStarted | answers.AgentStopped | answers.AgentError
TreeAnswer = answers.WorkTreeCreated | answers.WorkTreeFailed | answers.WorkTreeReleased | answers.WorkTreeReleaseFailed
QueryAnswer = answers.QueryResponded | answers.QueryFailed | answers.QueryReconciled | answers.AgentAsked
ReportAnswer = answers.ReportGenerated | answers.ReportFailed
TurnAnswer = QueryAnswer | ReportAnswer | answers.AgentSpent


class CommandTarget(Protocol):
    """Anything that a command is about: its attempts are counted, its status tells what it waits for."""

    attempt: int
    status: Any


def target_tree(step: Step, answer: TreeAnswer, status: WorkTreeStatus) -> WorkTree | None:
    """Return the WorkTree of an answer, if it is in the state that the answer is for."""
    tree = step.workflow.find_tree(answer.work_tree_id)
    return None if _is_late(step, answer, f"WorkTree {answer.work_tree_id}", tree, status) else tree


def target_agent(step: Step, answer: AgentAnswer, *statuses: AgentStatus) -> Work | None:
    """Return the Work of an agent that is in one of the states that the answer is for."""
    work = step.workflow.find_work(answer.work_id)
    agent = work.agent if work else None
    return None if _is_late(step, answer, f"agent of {answer.work_id}", agent, *statuses) else work


def target_query(step: Step, answer: QueryAnswer, *statuses: QueryStatus) -> tuple[Work, Task] | None:
    """Return the Work and the Task of a query in one of the states that the answer is for, and count its cost."""
    found = count_turn_cost(step, answer)
    query = found[1].query if found else None
    return None if _is_late(step, answer, f"query of {answer.task_id}", query, *statuses) else found


def target_petition(step: Step, answer: answers.AgentPetitioned) -> Work | None:
    """Return the Work whose agent is at the prompt, or at the report, that a petition came from."""
    found = _find_task(step, answer.task_id)
    task = found[1] if found else None
    if task and task.report.status is ReportStatus.GENERATING:
        late = _is_late(step, answer, f"report of {answer.task_id}", task.report, ReportStatus.GENERATING)
    else:
        query = task.query if task else None
        late = _is_late(step, answer, f"query of {answer.task_id}", query, QueryStatus.SENT, QueryStatus.UNKNOWN)
    return found[0] if found and not late else None


def target_report(step: Step, answer: ReportAnswer) -> tuple[Work, Task] | None:
    """Return the Work and the Task of a report that is being written, and count its cost."""
    found = count_turn_cost(step, answer)
    report = found[1].report if found else None
    late = _is_late(step, answer, f"report of {answer.task_id}", report, ReportStatus.GENERATING)
    return None if late else found


def target_verification(step: Step, answer: answers.WorkVerified | answers.VerifyFailed) -> Work | None:
    """Return the Work whose checks run."""
    work = step.workflow.find_work(answer.work_id)
    checks = work.verification if work else None
    late = _is_late(step, answer, f"verification of {answer.work_id}", checks, VerificationStatus.RUNNING)
    return None if late else work


def target_checkpoint(step: Step, answer: answers.CheckpointCreated | answers.CheckpointFailed) -> Work | None:
    """Return the Work whose checkpoint is being taken."""
    work = step.workflow.find_work(answer.work_id)
    checkpoint = work.checkpointing if work else None
    late = _is_late(step, answer, f"checkpoint of {answer.work_id}", checkpoint, CheckpointStatus.TAKING)
    return None if late else work


def target_roll_back(step: Step, answer: answers.RolledBack | answers.RollBackFailed) -> Resumption | None:
    """Return the resumption that waits for a rollback."""
    workflow, resumption = step.workflow, step.workflow.resumption
    awaited = resumption is not None and resumption.in_flight
    late = step.is_late(answer, "rollback", workflow.roll_backs, "over", awaited=awaited)
    return None if late else resumption


def _is_late(step: Step, answer: answers.HostAnswer, what: str, part: CommandTarget | None, *statuses: StrEnum) -> bool:
    attempt, status = (part.attempt, part.status) if part else (None, "")
    return step.is_late(answer, what, attempt, status, awaited=status in statuses)


def _find_task(step: Step, task_id: str) -> tuple[Work, Task] | None:
    for work in step.workflow.works:
        if task := work.find_task(task_id):
            return work, task
    return None


def count_turn_cost(step: Step, answer: TurnAnswer) -> tuple[Work, Task] | None:
    """Count what a turn has cost, which is a fact also where the answer comes too late; return whose turn it was."""
    found = _find_task(step, answer.task_id)
    if found:
        about = getattr(answer, "report_id", "") or answer.task_id
        found[0].count_cost(f"{about}#{answer.attempt}", answer.cost_usd)
    return found
