"""What was decided on the petitions of agents, where their host finds it and can tell them."""

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.workflow.records import DECIDED, UNDECIDED, VERDICTS


class PetitionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a petition is allowed: None as long as a person has to say so; `reason` is meant for the agent."""

    granted: bool | None
    reason: str = ""


async def save_verdict(transaction: Transaction, petition_id: str, verdict: PetitionVerdict) -> None:
    """Write a verdict down under the id that the host gave to the petition; what is known already is not written."""
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
    """Return what was decided on a petition; None as long as nobody has looked at it."""
    record = await transaction.get(VERDICTS.name, petition_id)
    return msgspec.convert(record.doc, PetitionVerdict) if record else None
