"""A worker that performs petitions and is killed: `python -m … BACKEND PLACE GITHUB JIRA before|after`."""

import asyncio
import os
import signal
import sys
from datetime import timedelta

from kingdom.bus import Attempt, CallResult, Dispatcher, Worker
from kingdom.court import streams
from kingdom.court.petitions.effects import PetitionEffect
from tests.contract.backends import BACKENDS
from tests.integration.court.petitions.scene import KINDS, TOPOLOGY, github_effect, jira_effect


def doomed(effect: PetitionEffect, moment: str) -> PetitionEffect:
    """Return an effect whose process is killed around its call."""
    send = effect.send

    async def die(attempt: Attempt) -> CallResult:
        if moment == "after":
            await send(attempt)
        os.kill(os.getpid(), signal.SIGKILL)
        return await send(attempt)

    effect.send = die  # type: ignore[method-assign]
    return effect


async def main(name: str, place: str, github: str, jira: str, moment: str) -> None:
    dispatcher = Dispatcher()
    dispatcher.effect(streams.PETITION_GRANTED["github"], doomed(github_effect(github), moment))
    dispatcher.effect(streams.PETITION_GRANTED["jira"], doomed(jira_effect(jira), moment))
    async with BACKENDS[name](place).open(TOPOLOGY, KINDS) as bus:
        await Worker(bus, dispatcher, [streams.PETITION_STREAM.name], poll=timedelta(milliseconds=20)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
