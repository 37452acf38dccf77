"""End an assignment: write its result, end everything that belongs to it, and notify the King."""

from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import AssignmentCompleted, AssignmentFailed
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.general.context import GeneralContext, open_assignments
from kingdom.court.petitions.settlement import withdraw_waiting_petitions
from kingdom.court.questions import close_question
from kingdom.court.records import ASSIGNMENTS, ENDED, RESULTS, load, save
from kingdom.court.result_memory import remember_result
from kingdom.court.sessions import remove_session
from kingdom.court.streams import slot_release_due
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORKFLOW

_RESULT_STATUS = {
    AssignmentStatus.COMPLETED: "success",
    AssignmentStatus.FAILED: "failed",
    AssignmentStatus.SKIPPED: "skipped",
}


async def end_assignment(
    context: GeneralContext,
    transaction: Transaction,
    root_id: str,
    status: AssignmentStatus,
    reason: str,
    workflow: Workflow | None = None,
) -> None:
    """End a root assignment and all assignments that resumed it. Does nothing if they have ended already."""
    found = await open_assignments(transaction, root_id)
    if not found:
        return
    now = context.clock()
    root = (await load(transaction, Assignment, root_id))[1]
    if workflow:
        await remove_run_sessions(transaction, workflow)
        if workflow.status not in WORKFLOW.final and not workflow.deleted_at:
            # Nothing would continue the run after its assignment. Retention removes its checkouts later.
            await lifecycle.cancel(transaction, workflow.id, actor=root.target_general, reason=reason)
    await close_question(transaction, root_id)
    await withdraw_waiting_petitions(transaction, root_id, f"the assignment has ended: {reason}")
    duration = round((now - (root.started_at or now)).total_seconds())
    cost = workflow.cost_usd if workflow else max(assignment.cost_usd for _, assignment in found)
    result = _final_result(root_id, status, reason, workflow)
    result["metrics"] = {"duration_seconds": duration, "cost_usd": round(cost, 6)}
    if await transaction.get(RESULTS.name, root_id) is None:
        await transaction.put(Record(kind=RESULTS.name, id=root_id, state=ENDED, doc=result))
    for record, assignment in found:
        ended = msgspec.structs.replace(
            assignment, status=status, ended_at=now, reason=reason, cost_usd=cost if assignment.id == root_id else 0.0
        )
        await save(transaction, ended, record)
        await transaction.publish(slot_release_due(assignment.id))
    if root.status in ASSIGNMENTS.final:
        # The root ended before it was resumed, and has already reported how it ended.
        return
    await remember_result(transaction, root, result, context.policy_of(root.target_general), now)
    actor = root.target_general
    if status is AssignmentStatus.FAILED:
        await log_event(
            transaction, AssignmentFailed(assignment_id=root_id, error=reason, retry_count=root.retries), actor
        )
    else:
        completed = AssignmentCompleted(assignment_id=root_id, status=_RESULT_STATUS[status], duration_seconds=duration)
        await log_event(transaction, completed, actor)


async def remove_run_sessions(transaction: Transaction, workflow: Workflow) -> None:
    """Remove the sessions of a run that has no running agent."""
    for work in workflow.works:
        if work.agent.session:
            await remove_session(transaction, soldier_of(work.agent.session))


def judge_result(workflow: Workflow) -> tuple[AssignmentStatus, str]:
    """Return the status and reason of an assignment whose run has ended, from the last report of an agent."""
    result = _last_report(workflow)
    if result is None:
        return AssignmentStatus.FAILED, "aborted: no agent reported a result"
    summary = str(result.get("summary", ""))
    if result.get("status") == "skipped":
        return AssignmentStatus.SKIPPED, str(result.get("reason") or summary)
    if result.get("status") == "failed":
        return AssignmentStatus.FAILED, str(result.get("error") or summary)
    return AssignmentStatus.COMPLETED, summary


def is_skipped(workflow: Workflow) -> bool:
    """Return whether an agent reported that there is nothing to do."""
    return (_last_report(workflow) or {}).get("status") == "skipped"


def _last_report(workflow: Workflow | None) -> dict[str, Any] | None:
    """Return the last report of an agent, or None."""
    works = workflow.works if workflow else []
    return next((work.result for work in reversed(works) if work.result is not None), None)


def _final_result(root_id: str, status: AssignmentStatus, reason: str, workflow: Workflow | None) -> dict[str, Any]:
    """Return the final result. Its id is that of the assignment, even if the agent reported another id."""
    reported = _last_report(workflow) or {}
    # For a failed assignment, an agent's summary of success would mislead.
    summary = reason if status is AssignmentStatus.FAILED else str(reported.get("summary", reason))
    result = {"task_id": root_id, "status": _RESULT_STATUS[status], "summary": summary}
    if status is AssignmentStatus.FAILED:
        result["error"] = reason
    elif status is AssignmentStatus.SKIPPED:
        result["reason"] = reason
    return result | {name: reported[name] for name in ("details", "memory_updates") if name in reported}
