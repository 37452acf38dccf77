"""The invariants of a Workflow. Each function yields the violations that it finds."""

from collections.abc import Iterator

from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import StopOutcome, Workflow
from kingdom.workflow.model.status import (
    WORKFLOW,
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    TaskStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)

STOPPED = frozenset(WorkflowStatus) - {
    WorkflowStatus.PREPARING,
    WorkflowStatus.RUNNING,
    WorkflowStatus.RESUMING,
}


def contradictions(workflow: Workflow) -> list[str]:
    checks = (_check_activity(workflow), _check_statuses(workflow), _check_order(workflow), _check_checkouts(workflow))
    found = [complaint for complaints in checks for complaint in complaints]
    for work in workflow.works:
        found += [f"{work.id}: {complaint}" for complaint in (*_check_work(work), *_check_tasks(work))]
    return found


def _check_activity(workflow: Workflow) -> Iterator[str]:
    """A stopped or ended run does nothing, and any other run waits for an answer."""
    if workflow.status in STOPPED and not workflow.is_idle:
        yield f"{workflow.status}, yet something runs"
    if workflow.status in STOPPED and workflow.stop_request:
        yield f"{workflow.status}, yet {workflow.stop_request} is wanted"
    if workflow.status not in STOPPED and workflow.is_idle:
        yield f"{workflow.status}, yet nothing runs and nothing is awaited"
    if (workflow.resumption is not None) != (workflow.status is WorkflowStatus.RESUMING):
        yield f"{workflow.status} with resumption {workflow.resumption}"


def _check_statuses(workflow: Workflow) -> Iterator[str]:
    """The status of the run matches the statuses of its Works."""
    statuses = [work.status for work in workflow.works]
    finished = all(work.is_finished for work in workflow.works)
    if workflow.status is WorkflowStatus.COMPLETED and not (finished and set(statuses) == {WorkStatus.COMPLETED}):
        yield f"COMPLETED with {statuses}"
    if finished and workflow.status is WorkflowStatus.RUNNING and workflow.is_idle:
        yield "RUNNING, yet nothing is left to do"
    if (workflow.status is WorkflowStatus.CANCELLED) != (WorkStatus.CANCELLED in statuses or _ended_late(workflow)):
        yield f"{workflow.status} with {statuses}"
    if WorkStatus.FAILED in statuses and not _may_have_failed_works(workflow):
        yield f"{workflow.status} with a failed Work"
    if WorkStatus.RUNNING in statuses and workflow.status is not WorkflowStatus.RUNNING:
        yield f"{workflow.status} with a running Work"


def _ended_late(workflow: Workflow) -> bool:
    """A run can be cancelled when all its Works are completed and only the end was left."""
    all_completed = all(work.status is WorkStatus.COMPLETED for work in workflow.works)
    return workflow.status is WorkflowStatus.CANCELLED and all_completed


def _may_have_failed_works(workflow: Workflow) -> bool:
    if workflow.status in {WorkflowStatus.FAILED, WorkflowStatus.RESUMING}:
        return True
    return bool(workflow.stop_request and workflow.stop_request.outcome in {StopOutcome.FAIL, StopOutcome.CANCEL})


def _check_order(workflow: Workflow) -> Iterator[str]:
    alive = [work.id for work in workflow.works if work.agent.alive]
    if len(alive) > 1:
        yield f"several agents run: {alive}"
    if [work.status for work in workflow.works].count(WorkStatus.RUNNING) > 1:
        yield "several Works run"
    started = [work.has_started for work in workflow.works]
    if started != sorted(started, reverse=True):
        yield "a Work started before an earlier one"
    for earlier, later in zip(workflow.works, workflow.works[1:], strict=False):
        if later.has_started and not earlier.is_finished:
            yield f"{later.id} started though {earlier.id} is not finished"


def _check_checkouts(workflow: Workflow) -> Iterator[str]:
    if workflow.status is WorkflowStatus.READY:
        for tree in workflow.work_trees:
            if tree.is_wanted and tree.status is not WorkTreeStatus.READY:
                yield f"READY with {tree.id} {tree.status}"
    wanted = [tree.ref for tree in workflow.work_trees if tree.is_wanted]
    over = workflow.deleted_at or workflow.status in WORKFLOW.final
    if not over and sorted(wanted, key=repr) != sorted(workflow.all_git_refs(), key=repr):
        yield f"checkouts {wanted} for references {workflow.all_git_refs()}"
    if len({(tree.ref.git_id, tree.branch) for tree in workflow.work_trees}) < len(workflow.work_trees):
        yield "two checkouts of one repository share a branch"


def _check_work(work: Work) -> Iterator[str]:
    """The status of a Work follows from its parts, and the parts match each other."""
    if work.status is not work.derived_status:
        yield f"stored as {work.status}, derived is {work.derived_status}"
    if work.status is WorkStatus.RUNNING and work.agent.status is not AgentStatus.RUNNING:
        yield f"RUNNING with an agent {work.agent.status}"
    if work.verification.status is VerificationStatus.RUNNING and not work.agent.alive:
        yield "verified without an agent"
    if work.is_finished and (work.agent.alive or work.status is not WorkStatus.COMPLETED):
        yield f"has its checkpoint, yet is {work.status} with an agent {work.agent.status}"
    if work.is_finished != (work.checkpointing.checkpoint_id is not None):
        yield f"checkpoint {work.checkpointing.checkpoint_id}, which is {work.checkpointing.status}"
    if work.checkpointing.status is not CheckpointStatus.PENDING and work.status is not WorkStatus.COMPLETED:
        yield f"checkpoint {work.checkpointing.status} of a Work that is {work.status}"


def _check_tasks(work: Work) -> Iterator[str]:
    """Tasks are done one after another, by an agent that runs, and fit their Work."""
    tasks = [task.status for task in work.tasks]
    if work.status is WorkStatus.COMPLETED and set(tasks) != {TaskStatus.COMPLETED}:
        yield f"COMPLETED with tasks {tasks}"
    if work.status is WorkStatus.CANCELLED and TaskStatus.RUNNING in tasks:
        yield f"CANCELLED with tasks {tasks}"
    idle = {TaskStatus.PENDING, TaskStatus.CANCELLED}
    if not work.has_started and (set(tasks) - idle or work.work_space_id):
        yield f"not started, yet {tasks} in {work.work_space_id}"
    active = [index for index, status in enumerate(tasks) if status not in idle]
    if active != list(range(len(active))):
        yield f"tasks out of order: {tasks}"
    in_flight = [task for task in work.tasks if _in_flight(task)]
    if len(in_flight) > 1 or (in_flight and not work.agent.alive):
        yield f"{len(in_flight)} tasks in flight with an agent {work.agent.status}"


def _in_flight(task: Task) -> bool:
    return QueryStatus.SENT is task.query.status or ReportStatus.GENERATING is task.report.status
