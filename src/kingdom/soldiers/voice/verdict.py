"""Waiting for what the court decides on a petition."""

import asyncio

from kingdom.bus.port import Bus
from kingdom.workflow.verdicts import PetitionVerdict, load_verdict

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


async def await_verdict(bus: Bus, petition_id: str) -> PetitionVerdict:
    """Return what was decided as soon as somebody has looked at a petition; whoever calls this sets the limit."""
    pause = _PAUSE_SECONDS
    while True:
        async with bus.transaction() as transaction:
            verdict = await load_verdict(transaction, petition_id)
        if verdict is not None:
            return verdict
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
