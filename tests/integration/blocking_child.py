"""A worker process that blocks while it handles an event. KIND says how.

Job is handled by a reaction, Call by an effect: python -m tests.integration.blocking_child KIND DSN OPTIONS
"""

import asyncio
import json
import logging
import signal
import sys
from datetime import timedelta
from typing import Any

import pytest

from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Effect,
    Event,
    LogEntry,
    ReconcileResult,
    Stream,
    Target,
    Transaction,
    Unclear,
    Worker,
)
from kingdom.log_output import configure_logs
from tests.integration.processes import say
from tests.integration.running import RENEWED_EARLY, open_bus, stream

# Lets a blocked child continue.
GO_ON = signal.SIGUSR1


def jobs(*, lease: float, deadline: float = 300.0) -> Stream:
    """Return the stream of Job, as parent and child declare it. The times are in seconds."""
    return stream("jobs", "Job", "Call", lease=timedelta(seconds=lease), deadline=timedelta(seconds=deadline))


def block(kind: str) -> None:
    """Block the whole process, asleep or busy, until the signal GO_ON arrives."""
    match kind:
        case "sleep":
            signal.sigwait({GO_ON})
        case "spin":
            while GO_ON not in signal.sigpending():
                pass


class BlockingCall(Effect[dict[str, int]]):
    target = Target(name="nobody")

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def key(self, event: Event[dict[str, int]]) -> str:
        return str(event.envelope.event_id)

    def request(self, event: Event[dict[str, int]]) -> dict[str, int]:
        return event.payload

    async def call(self, attempt: Attempt) -> CallResult:
        say("began", attempt.request["n"])
        block(self._kind)
        return Acked()

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        return Unclear(f"it is unknown what became of {attempt.identifier}")


async def work(kind: str, dsn: str, options: dict[str, Any]) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        say("began", received.payload["n"])
        block(kind)
        await transaction.append(LogEntry(type="handled", actor=kind, data=received.payload))

    dispatcher.effect("Call", BlockingCall(kind))
    declared = jobs(lease=options["lease"], deadline=options.get("deadline", 300.0))
    if options.get("renewed_early"):
        pytest.MonkeyPatch().setattr("kingdom.bus.worker.keeper.HeldLease.due_at", RENEWED_EARLY)
    idle_limit = timedelta(seconds=options.get("idle_limit", 30))
    async with open_bus(dsn, declared, idle_limit=idle_limit) as bus:
        worker = Worker(bus, dispatcher, ["jobs"], poll=timedelta(milliseconds=20))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        running = asyncio.create_task(worker.run())
        say("ready")
        await running


if __name__ == "__main__":
    configure_logs(json=True, level=logging.ERROR)
    # Set the mask before any thread starts, so that each thread inherits it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {GO_ON})
    asyncio.run(work(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
