"""Wait for the court's decision on a petition."""

import asyncio

from kingdom.bus.port import Bus
from kingdom.workflow.verdicts import PetitionVerdict, load_verdict

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


async def await_verdict(bus: Bus, petition_id: str) -> PetitionVerdict:
    """Return the verdict on a petition once it exists; the caller sets a time limit."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        async with bus.transaction() as transaction:
            verdict = await load_verdict(transaction, petition_id)
        if verdict is not None:
            return verdict
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
