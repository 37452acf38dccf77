"""A worker process whose handlers fail now and then and leave one log entry per handled event.

python -m tests.acceptance.counting_worker DSN {"name": …, "failures": 0.05, "pgbouncer": false}
"""

import asyncio
import json
import logging
import random
import signal
import sys
from datetime import timedelta
from typing import Any

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dispatcher, Event, LogEntry, RetryPolicy, Stream, Topology, Transaction, Worker
from kingdom.log_output import configure_logs
from tests.integration.processes import say

RETRY = RetryPolicy(base=timedelta(milliseconds=10))
TOPOLOGY = Topology(
    [
        Stream(name="jobs", subscribes=frozenset({"Job"}), retry=RETRY),
        Stream(name="steps", subscribes=frozenset({"Step"}), ordered=True, retry=RETRY),
    ]
)


async def work(dsn: str, options: dict[str, Any]) -> None:
    dispatcher, chance = Dispatcher(), random.Random(options["name"])

    @dispatcher.reaction("Job")
    @dispatcher.reaction("Step")
    async def count(received: Event[dict[str, int]], transaction: Transaction) -> None:
        key = received.envelope.partition_key or ""
        entry = LogEntry(type=received.envelope.type, actor=options["name"], aggregate_id=key, data=received.payload)
        await transaction.append(entry)
        if chance.random() < options["failures"]:
            raise ConnectionError("this happens")

    async with PostgresBus(dsn, TOPOLOGY, through_pgbouncer=options["pgbouncer"]) as bus:
        worker = Worker(bus, dispatcher, TOPOLOGY.names(), name=options["name"])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        running = asyncio.create_task(worker.run())
        say("ready")
        await running


if __name__ == "__main__":
    # Logging a line for each failed handler would take longer than handling the events.
    configure_logs(json=True, level=logging.ERROR)
    asyncio.run(work(sys.argv[1], json.loads(sys.argv[2])))
