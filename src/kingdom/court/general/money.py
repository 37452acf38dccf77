"""What a General does about money and the limits of vendors, beside asking people."""

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.port import Transaction
from kingdom.court.documents import Assignment, MessageType
from kingdom.court.general.ending import drop_sessions
from kingdom.court.general.staff import Staff, root_of
from kingdom.court.records import ASSIGNMENTS, load, save, tell_people
from kingdom.court.streams import assignment_rested
from kingdom.text import sentence, with_reason
from kingdom.workflow.model import events
from kingdom.workflow.model.workflow import Workflow


async def tell_parked(staff: Staff, transaction: Transaction, workflow: Workflow, root: Assignment) -> None:
    """Tell people that a run waits for its vendor; it keeps its slot and its money, for it goes on by itself."""
    await drop_sessions(transaction, workflow)
    await tell_people(
        transaction,
        MessageType.THREAD_UPDATE,
        sentence(with_reason(f"{root.id} is parked", workflow.reason)),
        channel=staff.channel_of(root.target_general),
        thread=root.id,
        today=staff.today,
        context={"task_id": root.id, "until": workflow.parked_until.isoformat() if workflow.parked_until else ""},
    )


async def cost_corrected(_: Staff, received: Event[events.WorkflowCostCorrected], transaction: Transaction) -> None:
    """Have booked what a run cost that is known only now."""
    corrected = received.payload
    _record, root = await load(transaction, Assignment, root_of(corrected.workflow_id))
    await book_late(transaction, root, corrected.cost_usd)


async def book_late(transaction: Transaction, root: Assignment, cost_usd: float) -> None:
    """Have booked what a run cost after its assignment had ended; before that its end does it."""
    if root.status in ASSIGNMENTS.final and cost_usd > root.cost_usd:
        record, _ = await load(transaction, Assignment, root.id)
        await save(transaction, msgspec.structs.replace(root, cost_usd=cost_usd), record)
        await transaction.publish(assignment_rested(root.id))
