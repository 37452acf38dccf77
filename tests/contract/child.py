"""A separate process that uses the bus: `python -m tests.contract.child BACKEND PLACE PROGRAM …`.

It reports what it does as JSON lines on stdout, and continues when it reads a line on stdin.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from kingdom.bus import Bus, Dispatcher, Done, Event, Record, Transaction, Worker
from kingdom.errors import KingdomError, LeaseLost
from kingdom.log_output import configure_logs
from tests.contract.backends import BACKENDS, LONG, BackendUnderTest
from tests.contract.outside import Payment, die
from tests.contract.scene import HOUR, KINDS, QUICK, QUICK_IDLE, TOPOLOGY, step


def print_facts(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def wait_for_input_line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def settle_late(_backend: BackendUnderTest, bus: Bus) -> None:
    """Claim one event, wait for an interruption, then renew and settle it."""
    (delivery,) = await bus.claim("free", 1, "child")
    print_facts(claimed=str(delivery.envelope.event_id), token=delivery.token)
    await wait_for_input_line()
    renewal = await asyncio.to_thread(bus.renew, {delivery.token: HOUR})
    print_facts(alive=sorted(renewal.alive))
    try:
        async with bus.transaction() as transaction:
            await transaction.put(Record(kind="job", id="of-the-zombie", state="open"))
            await transaction.settle(delivery, Done())
        print_facts(settled="kept")
    except LeaseLost:
        print_facts(settled="lost")


async def work(_backend: BackendUnderTest, bus: Bus) -> None:
    """Run a Worker whose handler is interrupted during its transaction."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Ping")
    async def handle(event: Event[dict[str, int]], transaction: Transaction) -> None:
        name = str(event.payload["number"])
        seen = await transaction.get("tally", name) or Record(kind="tally", id=name, state="counting", doc={"by": []})
        doc = {"by": [*seen.doc["by"], "child"]}
        await transaction.put(Record(kind="tally", id=name, state="counting", version=seen.version, doc=doc))
        print_facts(handling=event.payload["number"])
        await wait_for_input_line()

    await Worker(bus, dispatcher, ["free"], name="child", poll=timedelta(milliseconds=20)).run()


async def die_of_zero(_backend: BackendUnderTest, bus: Bus) -> None:
    """Run a Worker that the event with the number 0 kills."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Ping")
    async def handle(event: Event[dict[str, int]], _transaction: Transaction) -> None:
        if event.payload["number"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    await Worker(bus, dispatcher, ["free"], name="child", poll=timedelta(milliseconds=20)).run()


async def publish_slowly(backend: BackendUnderTest, bus: Bus) -> None:
    """Wait for an interruption while the rows of a key are locked."""
    try:
        async with backend.publishing(bus, step("k", 13)):
            print_facts(locked="k")
            await wait_for_input_line()
        print_facts(published=True)
    except KingdomError as error:
        print_facts(published=False, error=str(error))


async def pay(bus: Bus, payment: Payment) -> None:
    dispatcher = Dispatcher()
    dispatcher.effect("Bill", payment)
    await Worker(bus, dispatcher, ["free"], name="child", poll=timedelta(milliseconds=20)).run()


async def pay_and_die(_backend: BackendUnderTest, bus: Bus, book: str) -> None:
    """Make an outside call, and get killed before its result is recorded."""
    await pay(bus, Payment(Path(book), after=die))


async def die_before_paying(_backend: BackendUnderTest, bus: Bus, book: str) -> None:
    """Record that the call is sent, and get killed before sending it."""
    await pay(bus, Payment(Path(book), before=die))


async def pay_late(_backend: BackendUnderTest, bus: Bus, book: str) -> None:
    """Record that the call is sent, wait for an interruption, and send it when the process continues."""

    def be_interrupted() -> None:
        print_facts(paying=True)
        # Block the whole loop, so that nothing in this process cancels the payment.
        sys.stdin.readline()

    await pay(bus, Payment(Path(book), before=be_interrupted))


STOPPED = (settle_late, work, publish_slowly, pay_late)
DYING = (die_of_zero, pay_and_die, die_before_paying)
PROGRAMS: dict[str, Callable[..., Awaitable[None]]] = {program.__name__: program for program in (*STOPPED, *DYING)}


async def main(name: str, place: str, program: str, *details: str) -> None:
    backend = BACKENDS[name](place)
    run = PROGRAMS[program]
    # Only `settle_late` gets short leases. The other programs run a Worker, which would give up a lease that it cannot
    # renew in time.
    topology = QUICK if run is settle_late else TOPOLOGY
    async with backend.open(topology, KINDS, LONG if run in DYING else QUICK_IDLE) as bus:
        await run(backend, bus, *details)


if __name__ == "__main__":
    # Otherwise log lines would mix with the reports.
    configure_logs(json=True, level=logging.ERROR)
    asyncio.run(main(*sys.argv[1:]))
