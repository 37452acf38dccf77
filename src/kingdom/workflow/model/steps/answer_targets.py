"""Find the part of a run that an answer is for. If the answer is stale, record the reason and return None."""

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
    """A part of a run that gets commands. `attempt` is the number of the latest command."""

    attempt: int
    status: Any


def target_tree(step: Step, answer: TreeAnswer, status: WorkTreeStatus) -> WorkTree | None:
    """Return the WorkTree of an answer if it has the expected status."""
    tree = step.workflow.find_tree(answer.work_tree_id)
    return None if _ignore_if_stale(step, answer, f"WorkTree {answer.work_tree_id}", tree, status) else tree


def target_failed_tree(step: Step, answer: answers.WorkTreeFailed) -> WorkTree | None:
    """Return the WorkTree that could not be created, if any checkout of the same command still waits.

    The run may have been changed so that it no longer needs the WorkTree itself.
    """
    tree = step.workflow.find_tree(answer.work_tree_id)
    same_command = (tree for tree in step.workflow.work_trees if tree.attempt == answer.attempt)
    waiting = next((tree for tree in same_command if tree.status is WorkTreeStatus.CREATING), tree)
    part_name = f"WorkTree {answer.work_tree_id}"
    return None if _ignore_if_stale(step, answer, part_name, waiting, WorkTreeStatus.CREATING) else tree


def target_agent(step: Step, answer: AgentAnswer, *statuses: AgentStatus) -> Work | None:
    """Return the Work of an agent if the agent has an expected status."""
    work = step.workflow.find_work(answer.work_id)
    agent = work.agent if work else None
    return None if _ignore_if_stale(step, answer, f"agent of {answer.work_id}", agent, *statuses) else work


def target_query(step: Step, answer: QueryAnswer, *statuses: QueryStatus) -> tuple[Work, Task] | None:
    """Return the Work and Task of a prompt if the prompt has an expected status. Count the cost of the answer."""
    found = count_turn_cost(step, answer)
    query = found[1].query if found else None
    return None if _ignore_if_stale(step, answer, f"query of {answer.task_id}", query, *statuses) else found


def target_petition(step: Step, answer: answers.AgentPetitioned) -> Work | None:
    """Return the Work of a petition if its agent still works on the same prompt or report."""
    found = _find_task(step, answer.task_id)
    task = found[1] if found else None
    if task and task.report.status is ReportStatus.GENERATING:
        is_stale = _ignore_if_stale(step, answer, f"report of {answer.task_id}", task.report, ReportStatus.GENERATING)
    else:
        query = task.query if task else None
        is_stale = _ignore_if_stale(
            step, answer, f"query of {answer.task_id}", query, QueryStatus.SENT, QueryStatus.UNKNOWN
        )
    return found[0] if found and not is_stale else None


def target_report(step: Step, answer: ReportAnswer) -> tuple[Work, Task] | None:
    """Return the Work and Task of a report that is in progress. Count the cost of the answer."""
    found = count_turn_cost(step, answer)
    report = found[1].report if found else None
    is_stale = _ignore_if_stale(step, answer, f"report of {answer.task_id}", report, ReportStatus.GENERATING)
    return None if is_stale else found


def target_verification(step: Step, answer: answers.WorkVerified | answers.VerifyFailed) -> Work | None:
    """Return the Work whose checks are running."""
    work = step.workflow.find_work(answer.work_id)
    checks = work.verification if work else None
    is_stale = _ignore_if_stale(step, answer, f"verification of {answer.work_id}", checks, VerificationStatus.RUNNING)
    return None if is_stale else work


def target_checkpoint(step: Step, answer: answers.CheckpointCreated | answers.CheckpointFailed) -> Work | None:
    """Return the Work whose checkpoint is in progress."""
    work = step.workflow.find_work(answer.work_id)
    checkpoint = work.checkpointing if work else None
    is_stale = _ignore_if_stale(step, answer, f"checkpoint of {answer.work_id}", checkpoint, CheckpointStatus.TAKING)
    return None if is_stale else work


def target_roll_back(step: Step, answer: answers.RolledBack | answers.RollBackFailed) -> Resumption | None:
    """Return the resumption that waits for a rollback."""
    workflow, resumption = step.workflow, step.workflow.resumption
    awaited = resumption is not None and resumption.in_flight
    is_stale = step.ignore_if_stale(answer, "rollback", workflow.roll_backs, "over", awaited=awaited)
    return None if is_stale else resumption


def _ignore_if_stale(
    step: Step, answer: answers.HostAnswer, part_name: str, part: CommandTarget | None, *statuses: StrEnum
) -> bool:
    """Record why an answer is out of date, and return whether it is. `statuses` are those that expect the answer."""
    attempt, status = (part.attempt, part.status) if part else (None, "")
    return step.ignore_if_stale(answer, part_name, attempt, status, awaited=status in statuses)


def _find_task(step: Step, task_id: str) -> tuple[Work, Task] | None:
    for work in step.workflow.works:
        if task := work.find_task(task_id):
            return work, task
    return None


def count_turn_cost(step: Step, answer: TurnAnswer) -> tuple[Work, Task] | None:
    """Count the cost of a turn, even if its answer is late, and return the Work and Task of the turn."""
    found = _find_task(step, answer.task_id)
    if found:
        turn_id = getattr(answer, "report_id", "") or answer.task_id
        found[0].count_cost(f"{turn_id}#{answer.attempt}", answer.cost_usd)
    return found
