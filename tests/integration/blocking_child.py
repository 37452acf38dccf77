"""A worker process whose way to handle Job is chosen by name.

Job is handled by a reaction, Call by an effect: python -m tests.integration.blocking_child KIND DSN OPTIONS
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

from kingdom.bus import (
    Acked,
    Answer,
    Attempt,
    Dispatcher,
    Effect,
    Finding,
    LogEntry,
    Received,
    Stream,
    Target,
    Transaction,
    Unclear,
    Worker,
)
from kingdom.bus.logs import configure_logs
from tests.integration.processes import say
from tests.integration.running import open_bus, stream


def jobs(*, lease: float, deadline: float = 300.0) -> Stream:
    """Return the stream of Job as parent and child declare it, times in seconds."""
    return stream("jobs", "Job", "Call", lease=timedelta(seconds=lease), deadline=timedelta(seconds=deadline))


def block(kind: str, seconds: float) -> None:
    match kind:
        case "sleep":
            time.sleep(seconds)
        case "spin":
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "die":
            os._exit(1)


class BlockingCall(Effect[dict[str, int]]):
    target = Target(name="nobody")

    def __init__(self, kind: str, seconds: float) -> None:
        self._kind = kind
        self._seconds = seconds

    def key(self, event: Received[dict[str, int]]) -> str:
        return str(event.envelope.event_id)

    def request(self, event: Received[dict[str, int]]) -> dict[str, int]:
        return event.payload

    async def call(self, attempt: Attempt) -> Answer:
        say("began", attempt.request["n"])
        block(self._kind, self._seconds)
        return Acked()

    async def reconcile(self, attempt: Attempt) -> Finding:
        return Unclear(f"nobody knows of {attempt.identifier}")


async def work(kind: str, dsn: str, options: dict[str, Any]) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Received[dict[str, int]], transaction: Transaction) -> None:
        say("began", received.payload["n"])
        if received.payload["n"] == options.get("only", received.payload["n"]):
            block(kind, options.get("seconds", 0))
        await transaction.append(LogEntry(type="handled", actor=kind, data=received.payload))

    dispatcher.effect("Call", BlockingCall(kind, options.get("seconds", 0)))
    declared = jobs(lease=options["lease"], deadline=options.get("deadline", 300.0))
    idle_limit = timedelta(seconds=options.get("idle_limit", 30))
    async with open_bus(dsn, declared, idle_limit=idle_limit) as bus:
        worker = Worker(bus, dispatcher, ["jobs"], poll=timedelta(milliseconds=20))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        running = asyncio.create_task(worker.run())
        say("ready")
        await running


if __name__ == "__main__":
    configure_logs(json=True, level=logging.ERROR)
    asyncio.run(work(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
