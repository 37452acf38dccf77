"""The application under test; a payload tells its handler what to do."""

import asyncio
import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from kingdom.bus import (
    Application,
    Dispatcher,
    Event,
    LogEntry,
    RetryPolicy,
    Stream,
    Topology,
    Transaction,
)
from kingdom.bus.operations import Retention
from kingdom.errors import Permanent

STREAMS = (
    Stream(
        name="orders",
        subscribes=frozenset({"OrderPlaced"}),
        retry=RetryPolicy(base=timedelta(milliseconds=10), max_attempts=2),
    ),
    Stream(name="lines", subscribes=frozenset({"LineAdded"}), ordered=True),
    Stream(name="shelf.{number}"),
)
topology = Topology(STREAMS)
dispatcher = Dispatcher()
_log = structlog.get_logger()


@dispatcher.reaction("OrderPlaced")
async def placed(event: Event[dict[str, Any]], transaction: Transaction) -> None:
    order = event.payload
    _log.info("placing")
    logging.getLogger("shop").warning("placing, says the standard library")
    if "fail" in order:
        raise Permanent(order["fail"])
    if "until" in order:
        await _until_there(Path(order["until"]))
    if "block" in order:
        # Block the event loop on purpose, as a faulty handler does.
        time.sleep(order["block"])  # noqa: ASYNC251
    await transaction.append(LogEntry(type="order.placed", actor="shop", data=order))


async def _until_there(file: Path) -> None:
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - the test makes the file
        await asyncio.sleep(0.02)


app = Application(topology, dispatcher)
patient_app = Application(topology, dispatcher, retention=Retention(archive=timedelta(days=30)))
