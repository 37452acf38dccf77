"""A web server in a process of its own, which can kill itself at a moment that a test chooses."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.wrapped_bus import WrappedBus
from kingdom.access.acts import ACTS
from kingdom.bus import Bus, Operations, Transaction
from kingdom.bus.delivery import Delivery
from tests.contract.backends import BACKENDS
from tests.integration.processes import say
from tests.integration.web.site import serving

PERFORMED = "performed"
CHANGES = ("pause", "resume", "patch", "redrive", "discard")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingBus(WrappedBus):
    """Kills the process after the commit that makes an act `accepted` or `done`."""

    def __init__(self, bus: Bus, moment: str) -> None:
        super().__init__(bus)
        self._moment = moment

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        async with self._bus.transaction(hold, optimistic=optimistic) as transaction:
            yield transaction
        if self._moment in {
            put.record.state for (kind, _), put in transaction.changes.puts.items() if kind == ACTS.name
        }:
            die()


def dying_operations(operations: Operations) -> Operations:
    """Return operations that kill the process after the first change."""

    def make(change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def change_and_die(*positional: Any, **named: Any) -> None:
            await change(*positional, **named)
            die()

        return change_and_die

    for name in CHANGES:
        setattr(operations, name, make(getattr(operations, name)))
    return operations


async def main(kind: str, place: str, options: dict[str, Any]) -> None:
    moment = options["moment"]
    backend = BACKENDS[kind](place)

    def wrap(bus: Bus, operations: Operations) -> tuple[Bus, Operations]:
        return DyingBus(bus, moment), dying_operations(operations) if moment == PERFORMED else operations

    async with serving(backend, Path(options["folder"]), wrap=wrap) as site:
        say("url", site.url)
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
