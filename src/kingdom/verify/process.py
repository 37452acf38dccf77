"""One process under test: `python -m kingdom.verify.process`, with its part as JSON on standard input."""

import asyncio
import logging
import random
import signal
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec

from kingdom.bootstrap import open_bus, trial_store
from kingdom.bus import Bus, Dispatcher, Worker
from kingdom.bus.log_output import configure_logs
from kingdom.errors import Unavailable
from kingdom.verify.calls import register_calls
from kingdom.verify.history import History
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.publisher import Publisher
from kingdom.verify.reactions import Reactions
from kingdom.verify.recording_bus import RecordingBus, RecordingMetrics
from kingdom.verify.script import ScriptRunner
from kingdom.verify.workload import COMMON, KINDS, STEADY, topology

_GRACE = timedelta(seconds=5)
_OPEN_AGAIN_SECONDS = 0.2
_LEASES_FOR_STEADY_REACTIONS = 4


async def play(part: ProcessConfig) -> None:
    """Open the bus and work or publish until SIGTERM comes."""
    history = History(Path(part.directory), part.name)
    lease = timedelta(seconds=part.lease_seconds)
    async with AsyncExitStack() as stack:
        streams = topology(lease, timedelta(seconds=part.steady_lease_seconds))
        # Who is never stopped holds nobody up.
        idle_limit = _LEASES_FOR_STEADY_REACTIONS * lease if part.role == "steady" else lease
        bus: Bus | None = None
        while bus is None:
            opening = open_bus(part.url, streams, KINDS, schema=part.schema, idle_limit=idle_limit)
            try:
                bus = await stack.enter_async_context(opening)
            except Unavailable as error:
                # The nemesis was faster; a supervisor would start this process again.
                history.write("not_opened", error=str(error))
                await asyncio.sleep(_OPEN_AGAIN_SECONDS)
        rng = random.Random(part.seed)  # noqa: S311 - a seeded workload, no secret
        history.write("ready")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if part.role == "publisher":
            await _publish(part, bus, history, rng)
        else:
            await _work(part, bus, history, rng)
    history.write("ended")


async def _publish(part: ProcessConfig, bus: Bus, history: History, rng: random.Random) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    publisher = Publisher(bus, trial_store(part.url, part.schema), history, rng)
    await publisher.run(stopping, pause_seconds=part.pause_seconds)


async def _work(part: ProcessConfig, bus: Bus, history: History, rng: random.Random) -> None:
    stagehand = ScriptRunner(Path(part.directory))
    dispatcher = Dispatcher()
    Reactions(history, stagehand, rng, trouble=part.trouble).register(dispatcher)
    register_calls(dispatcher, history, stagehand, part.target_port)
    witnessed, losses = RecordingBus(bus, history), RecordingMetrics(history)
    streams = (STEADY,) if part.role == "steady" else COMMON
    worker = Worker(witnessed, dispatcher, streams, name=part.name, grace=_GRACE, metrics=losses)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


def main() -> None:
    """Read the part and play it."""
    configure_logs(json=True, level=logging.WARNING)
    asyncio.run(play(msgspec.json.decode(sys.stdin.buffer.readline(), type=ProcessConfig)))


if __name__ == "__main__":
    main()
