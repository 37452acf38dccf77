"""How petitions end: performed or failed outside, withdrawn with their assignment, or too late."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.asks import ask_no_more
from kingdom.court.petitions.approval import heed_answer
from kingdom.court.petitions.decision import PETITIONS, TOO_LATE, Petition, PetitionState
from kingdom.court.petitions.records import read, records_of, refuse, save
from kingdom.court.streams import petition_settled


async def settle(
    transaction: Transaction,
    petition_id: str,
    state: PetitionState,
    *,
    reason: str = "",
    response: Mapping[str, Any] | None = None,
) -> None:
    """Write down how a granted petition ended, and tell its General."""
    record = await transaction.get(PETITIONS.name, petition_id)
    if record is None:
        # Its retention has passed, and so has all that waited for it.
        return
    ended = msgspec.structs.replace(
        read(record), state=state, reason=reason, response=dict(response or {}), unclear=False
    )
    await _settled(transaction, ended, record)


async def withdraw_waiting(transaction: Transaction, root_id: str, reason: str) -> None:
    """Refuse what waits for something that will not come any more: a checkpoint, its turn, a person."""
    for record, asked in await records_of(transaction, root_id):
        if asked.state is PetitionState.REQUESTED:
            await ask_no_more(transaction, asked.id)
            await refuse(transaction, asked, record, reason)


async def give_up_overdue(transaction: Transaction, now: datetime, limit: int = 100) -> int:
    """Let assignments go on whose petitions nobody could perform, approve or clear up in time; returns how many.

    What the bus still finds out later is written down all the same.
    """
    overdue = await transaction.find(RecordQuery(kind=PETITIONS.name, due_by=now, limit=limit))
    for record in overdue:
        await _give_up(transaction, read(record), record)
    return len(overdue)


async def _give_up(transaction: Transaction, petition: Petition, record: Record) -> None:
    if petition.state is PetitionState.GRANTED:
        reason = "nobody could tell in time whether it was done: `kingdom bus dead list` shows what is known"
        failed = msgspec.structs.replace(petition, state=PetitionState.FAILED, reason=reason, unclear=True)
        await _settled(transaction, failed, record)
        return
    if petition.awaits_person:
        await ask_no_more(transaction, petition.id)
        # Somebody may have answered in time and not have been heard yet.
        await heed_answer(transaction, petition, record)
    else:
        await refuse(transaction, petition, record, TOO_LATE)
    await transaction.publish(petition_settled(petition.id, petition.root))


async def _settled(transaction: Transaction, ended: Petition, record: Record) -> None:
    await save(transaction, msgspec.structs.replace(ended, ended_at=utc_now()), record)
    await transaction.publish(petition_settled(ended.id, ended.root))
