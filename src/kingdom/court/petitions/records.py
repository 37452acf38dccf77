"""Store petitions in order, log each change of state, and save the verdict for the agents."""

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery, read_document
from kingdom.clock import utc_now
from kingdom.court.petitions.decision import OPEN, PETITIONS, Petition, PetitionState
from kingdom.workflow.records import each_record
from kingdom.workflow.verdicts import save_verdict


async def petitions_with_records(transaction: Transaction, root_id: str) -> list[tuple[Record, Petition]]:
    """Return all petitions of an assignment with their records, in order."""
    query = RecordQuery(kind=PETITIONS.name, index="root", value=root_id)
    found = [(record, read_petition(record)) async for record in each_record(transaction, query)]
    return sorted(found, key=lambda known: (known[1].number, known[1].created_at))


async def petitions_of(transaction: Transaction, root_id: str) -> list[Petition]:
    """Return all petitions of an assignment in order."""
    return [petition for _, petition in await petitions_with_records(transaction, root_id)]


async def has_open_petitions(transaction: Transaction, root_id: str) -> bool:
    """Return whether an assignment has unfinished petitions."""
    return any(petition.state in OPEN for petition in await petitions_of(transaction, root_id))


async def refuse_petition(transaction: Transaction, petition: Petition, record: Record | None, reason: str) -> Petition:
    """Store a petition as refused, with a reason."""
    refused = msgspec.structs.replace(petition, state=PetitionState.REFUSED, reason=reason, ended_at=utc_now())
    return await save_petition(transaction, refused, record)


async def save_petition(transaction: Transaction, petition: Petition, record: Record | None) -> Petition:
    """Store a petition with its verdict if it changed, and log a change of state."""
    if record and read_petition(record) == petition:
        return petition
    await transaction.put(
        Record(
            kind=PETITIONS.name,
            id=petition.id,
            version=record.version if record else 0,
            state=petition.state,
            indexed={"root": petition.root},
            due_at=petition.due_at,
            doc=msgspec.to_builtins(petition),
        )
    )
    for name in petition.asked_as:
        await save_verdict(transaction, name, petition.verdict)
    if record is None or record.state != petition.state:
        await transaction.append(_entry(petition))
    return petition


def read_petition(record: Record) -> Petition:
    """Return the petition in a record."""
    return read_document(record.doc, Petition)


def _entry(petition: Petition) -> LogEntry:
    data = {"petition_id": petition.id, "task_id": petition.root, "kind": petition.kind, "target": petition.target}
    more = {"reason": petition.reason, "decided_by": petition.decided_by}
    return LogEntry(
        type=f"petition.{petition.state}",
        actor=petition.general,
        data=data | {name: value for name, value in more.items() if value},
        aggregate_type="task",
        aggregate_id=petition.root,
    )
