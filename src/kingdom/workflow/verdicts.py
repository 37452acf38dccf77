"""Stored verdicts on the petitions of agents. The host of an agent reads them."""

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.workflow.records import DECIDED, UNDECIDED, VERDICTS


class PetitionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a petition: `granted` is None until a person has decided. `reason` is a text for the agent."""

    granted: bool | None
    reason: str = ""


async def save_verdict(transaction: Transaction, petition_id: str, verdict: PetitionVerdict) -> None:
    """Store the verdict on a petition, unless an equal verdict is stored already."""
    record = await transaction.get(VERDICTS.name, petition_id)
    if record and msgspec.convert(record.doc, PetitionVerdict) == verdict:
        return
    await transaction.put(
        Record(
            kind=VERDICTS.name,
            id=petition_id,
            version=record.version if record else 0,
            state=UNDECIDED if verdict.granted is None else DECIDED,
            doc=msgspec.to_builtins(verdict),
        )
    )


async def load_verdict(transaction: Transaction, petition_id: str) -> PetitionVerdict | None:
    """Return the verdict on a petition; None if there is none yet."""
    record = await transaction.get(VERDICTS.name, petition_id)
    return msgspec.convert(record.doc, PetitionVerdict) if record else None
