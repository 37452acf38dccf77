"""Costs that arrive late, and runs that wait for a usage limit."""

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.port import Transaction
from kingdom.court.documents import Assignment, MessageType
from kingdom.court.general.assignment_end import remove_run_sessions
from kingdom.court.general.context import GeneralContext, root_id_of
from kingdom.court.records import ASSIGNMENTS, load, queue_message, save
from kingdom.court.streams import slot_release_due
from kingdom.text import sentence, with_reason
from kingdom.workflow.model.messages import events
from kingdom.workflow.model.run.workflow import Workflow


async def announce_parked(
    context: GeneralContext, transaction: Transaction, workflow: Workflow, root: Assignment
) -> None:
    """Inform people that a run waits for a usage limit. The run keeps its slot and budget, and continues by itself."""
    await remove_run_sessions(transaction, workflow)
    await queue_message(
        transaction,
        MessageType.THREAD_UPDATE,
        sentence(with_reason(f"{root.id} is parked", workflow.reason)),
        channel=context.channel_of(root.target_general),
        thread=root.id,
        today=context.today,
        context={"task_id": root.id, "until": workflow.parked_until.isoformat() if workflow.parked_until else ""},
    )


async def on_cost_corrected(
    _: GeneralContext, received: Event[events.WorkflowCostCorrected], transaction: Transaction
) -> None:
    """Record a cost that became known after the run ended."""
    corrected = received.payload
    _record, root = await load(transaction, Assignment, root_id_of(corrected.workflow_id))
    await record_late_cost(transaction, root, corrected.cost_usd)


async def record_late_cost(transaction: Transaction, root: Assignment, cost_usd: float) -> None:
    """Record the cost of a run if its assignment has already ended. Otherwise the end of the assignment records it."""
    if root.status in ASSIGNMENTS.final and cost_usd > root.cost_usd:
        record, _ = await load(transaction, Assignment, root.id)
        await save(transaction, msgspec.structs.replace(root, cost_usd=cost_usd), record)
        await transaction.publish(slot_release_due(root.id))
