"""The processes of a soak: `python -m bench.soak.load worker|publisher DSN`, each until SIGTERM."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dispatcher, Envelope, Event, Stream, Topology, Transaction, Worker
from kingdom.log_output import configure_logs

PLAIN, LINE = "plain", "line"
TOPOLOGY = Topology(
    [
        Stream(name=PLAIN, subscribes=frozenset({"Plain"})),
        Stream(name=LINE, ordered=True, subscribes=frozenset({"Lined"})),
    ]
)
BATCH = 100
KEYS = 1000
# Publishers wait while a stream has this many open events, so the workers limit the load.
BACKLOG = 2000
_PAUSE_SECONDS = 0.02
_WATCH_SECONDS = 1.0


async def work(dsn: str, on_stop: Callable[[Callable[[], None]], None]) -> None:
    """Handle both streams until SIGTERM."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Plain")
    @dispatcher.reaction("Lined")
    async def handle(_event: Event[object], _transaction: Transaction) -> None: ...

    async with PostgresBus(dsn, TOPOLOGY) as bus:
        worker = Worker(bus, dispatcher, [PLAIN, LINE])
        on_stop(worker.stop)
        await worker.run()


async def publish(dsn: str, on_stop: Callable[[Callable[[], None]], None]) -> None:
    """Keep both streams filled until SIGTERM, then print the number of events."""
    stopped = asyncio.Event()
    on_stop(stopped.set)
    published = 0
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        operations = PostgresOperations(bus)
        while not stopped.is_set():
            if any(row.pending > BACKLOG for row in await operations.stats()):
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            for _ in range(BACKLOG // BATCH // 2):
                await bus.publish(*(_event(published + number) for number in range(2 * BATCH)))
                published += 2 * BATCH
    print(published)


def _event(number: int) -> Envelope:
    """Return an event: half of them are ordered, and half of those belong to one hot key."""
    payload = {"number": number, "text": "x" * 160}
    if number % 2:
        return Envelope(type="Plain", payload=payload)
    key = "hot" if number % 4 else f"key-{number // 4 % KEYS}"
    return Envelope(type="Lined", partition_key=key, payload=payload)


async def _main(role: str, dsn: str) -> None:
    loop = asyncio.get_running_loop()

    def on_stop(stop: Callable[[], None]) -> None:
        loop.add_signal_handler(signal.SIGTERM, stop)

    watching = asyncio.create_task(_end_with_parent())
    await {"worker": work, "publisher": publish}[role](dsn, on_stop)
    watching.cancel()


async def _end_with_parent() -> None:
    """Send SIGTERM to this process when its parent dies."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - no event says that the parent has died
        await asyncio.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    configure_logs(json=True, level=logging.ERROR)
    asyncio.run(_main(*sys.argv[1:]))
