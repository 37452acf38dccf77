"""One process under test: `python -m kingdom.verify.process`, with its configuration as JSON on standard input."""

import asyncio
import logging
import random
import signal
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec

from kingdom.bootstrap import courier_of, open_bus, trial_store
from kingdom.bus import Bus, Dispatcher, Worker
from kingdom.errors import Unavailable
from kingdom.log_output import configure_logs
from kingdom.parent_death import ending_with_parent
from kingdom.verify.calls import register_calls
from kingdom.verify.history import History
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.publisher import Publisher
from kingdom.verify.reactions import Reactions
from kingdom.verify.recording_bus import RecordingBus, RecordingMetrics
from kingdom.verify.script import ScriptRunner
from kingdom.verify.workload import APPLIED, COMMON, KINDS, STEADY, topology

_GRACE = timedelta(seconds=5)
_OPEN_AGAIN_SECONDS = 0.2
_STEADY_IDLE_LEASES = 4


async def run_process(config: ProcessConfig) -> None:
    """Open the bus, and work or publish until SIGTERM arrives."""
    history = History(Path(config.directory), config.name)
    lease = timedelta(seconds=config.lease_seconds)
    async with AsyncExitStack() as stack:
        streams = topology(lease, timedelta(seconds=config.steady_lease_seconds), config.carried)
        # Long jobs keep a transaction open. This blocks no other process, because a steady worker is never stopped.
        idle_limit = _STEADY_IDLE_LEASES * lease if config.role == "steady" else lease
        bus: Bus | None = None
        while bus is None:
            # A publisher needs no connection to Kafka.
            kafka = None if config.role == "publisher" else config.settings
            opening = open_bus(config.url, streams, KINDS, schema=config.schema, idle_limit=idle_limit, kafka=kafka)
            try:
                bus = await stack.enter_async_context(opening)
            except Unavailable as error:
                # A fault has made the store unavailable. Try again, as a supervisor would.
                history.write("not_opened", error=str(error))
                await asyncio.sleep(_OPEN_AGAIN_SECONDS)
        rng = random.Random(config.seed)  # noqa: S311 - a seeded workload, no secret
        history.write("ready")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        match config.role:
            case "publisher":
                await _publish(config, bus, history, rng)
            case "courier":
                await _send(config, bus, lease)
            case _:
                await _work(config, bus, history, rng)
    history.write("ended")


async def _publish(config: ProcessConfig, bus: Bus, history: History, rng: random.Random) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    store = trial_store(config.url, config.schema, kafka=config.settings, applied=APPLIED)
    publisher = Publisher(bus, store, history, rng)
    await publisher.run(stopping, pause_seconds=config.pause_seconds)


async def _send(config: ProcessConfig, bus: Bus, lease: timedelta) -> None:
    courier = courier_of(bus, config.settings, lease=lease)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, courier.stop)
    await courier.run()


async def _work(config: ProcessConfig, bus: Bus, history: History, rng: random.Random) -> None:
    scripts = ScriptRunner(Path(config.directory))
    dispatcher = Dispatcher()
    Reactions(history, scripts, rng, failure_rate=config.failure_rate).register(dispatcher)
    register_calls(dispatcher, history, scripts, config.target_port)
    recording_bus, metrics = RecordingBus(bus, history), RecordingMetrics(history)
    streams = (STEADY,) if config.role == "steady" else COMMON
    worker = Worker(recording_bus, dispatcher, streams, name=config.name, grace=_GRACE, metrics=metrics)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


def main() -> None:
    """Read the configuration and run the process."""
    configure_logs(json=True, level=logging.WARNING)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ProcessConfig)
    # A verification that is killed must leave no process that publishes or works.
    ending_with_parent(config.parent, signal.SIGKILL)()
    asyncio.run(run_process(config))


if __name__ == "__main__":
    main()
