"""A web server in a process of its own, which can kill itself at a moment that a test chooses."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.wrapped_bus import WrappedBus
from kingdom.access.acts import ACCEPTED, ACTS
from kingdom.bus import Bus, Operations, Transaction
from kingdom.bus.delivery import Delivery
from tests.contract.backends import BACKENDS
from tests.integration.processes import say
from tests.integration.web.site import serving


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingBus(WrappedBus):
    """Kills the process after the commit that publishes an event, or after the one that accepts an act."""

    def __init__(self, bus: Bus, moment: str) -> None:
        super().__init__(bus)
        self._moment = moment

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        async with self._bus.transaction(hold, optimistic=optimistic) as transaction:
            yield transaction
        changes = transaction.changes
        accepts = any(kind == ACTS.name and put.record.state == ACCEPTED for (kind, _), put in changes.puts.items())
        if (self._moment == "published" and changes.copies) or (self._moment == "accepted" and accepts):
            die()


def dying_operations(operations: Operations, moment: str) -> Operations:
    """Return operations that kill the process after the first redrive."""
    redrive = operations.redrive

    async def redrive_and_die(positions: Sequence[int], *, actor: str) -> list[UUID]:
        await redrive(positions, actor=actor)
        die()
        return []

    if moment == "redriven":
        operations.redrive = redrive_and_die  # type: ignore[method-assign] # this process is going to die
    return operations


async def main(kind: str, place: str, options: dict[str, Any]) -> None:
    moment = options["moment"]
    backend = BACKENDS[kind](place)

    def wrap(bus: Bus, operations: Operations) -> tuple[Bus, Operations]:
        return DyingBus(bus, moment), dying_operations(operations, moment)

    async with serving(backend, Path(options["folder"]), wrap=wrap) as site:
        say("url", site.url)
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
