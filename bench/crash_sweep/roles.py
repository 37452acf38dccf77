"""The processes of a run: the engine, the host, and the client that starts the run and waits for its end."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import msgspec

from bench.crash_sweep import scene
from bench.crash_sweep.process import accept_sigterm
from bench.crash_sweep.stage import HOST_NAME, Outcome, Stage
from bench.crash_sweep.steps import Steps
from bench.crash_sweep.swept import SweptAgents, count_steps
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.port import Bus
from kingdom.bus.stream import Topology
from kingdom.bus.worker import Worker
from kingdom.errors import Unavailable
from kingdom.soldiers.agent_kinds import AGENT_KINDS as AGENTS
from kingdom.soldiers.agent_kinds import build_agent_environment
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle, streams
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import KINDS
from kingdom.workflow.timers import run_timers

_SLOTS = 2
# The leases of a killed process expire after this time, if nothing else shows that the process is dead. A busy machine
# does not delay a process for so long: a lease that is lost without a crash would be a finding.
_LEASE = timedelta(seconds=5)
_POLL_SECONDS = 0.1
_IDLE_LIMIT_SECONDS = 60.0
_ENDINGS = {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
TOPOLOGY = Topology(
    replace(stream, lease=_LEASE)
    for stream in (streams.WORKFLOW_STREAM, streams.REGISTRY_STREAM, streams.COMMAND_STREAM, streams.CONTROL_STREAM)
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bus]:
    """Open the store of a run."""
    async with open_bus(url, TOPOLOGY, KINDS, connections=4) as bus:
        yield bus


def _end_by(stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    accept_sigterm()


async def play_engine(stage: Stage, step_counter: Steps) -> None:
    """Run the engine."""
    async with opened(stage.url) as bus:
        count_steps(bus, step_counter)
        worker = Worker(bus, engine().dispatcher, streams.ENGINE_STREAMS)
        asked = asyncio.Event()
        _end_by(asked.set)

        async def stop_when_idle() -> None:
            await asked.wait()
            # A host may have restarted just when the run ended: handle its messages too.
            with suppress(TimeoutError):
                await asyncio.wait_for(until_idle(bus), _IDLE_LIMIT_SECONDS)
            worker.stop()

        beside = [asyncio.create_task(each) for each in (run_timers(bus), stop_when_idle())]
        await worker.run()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def play_host(stage: Stage, step_counter: Steps) -> None:
    """Run a host."""
    settings = stage.soldiers
    client = SweptAgents(AGENTS[settings.agent].client(settings), step_counter)
    async with opened(stage.url) as bus:
        count_steps(bus, step_counter)
        host = SoldierHost(
            bus,
            HOST_NAME,
            client,
            HostFolders(stage.host_directory),
            slots=_SLOTS,
            agent_environment=build_agent_environment(settings, lambda _: None, set()),
        )
        _end_by(host.stop)
        await host.run()


async def play_client(stage: Stage, _: Steps) -> None:
    """Start the run, and wait for its end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with opened(stage.url) as bus:
        workflow = await lifecycle.create(bus, "reference", actor=scene.ACTOR)
        try:
            async with asyncio.timeout(stage.seconds):
                await _start(bus, workflow.id)
                while workflow.status not in _ENDINGS:
                    await asyncio.sleep(_POLL_SECONDS)
                    workflow = await lifecycle.show(bus, workflow.id)
                await until_idle(bus)
        except TimeoutError:
            workflow = await lifecycle.show(bus, workflow.id)
        outcome = Outcome(workflow.id, workflow.status, workflow.reason, round(loop.time() - began, 3))
    stage.outcome.write_bytes(msgspec.json.encode(outcome))


async def _start(bus: Bus, workflow_id: str) -> None:
    """Wait until the engine knows the host, and start the run. If it started earlier, it would be placed twice."""
    while True:
        try:
            async with bus.transaction() as transaction:
                host = await transaction.get("host", HOST_NAME)
            if host:
                await until_idle(bus)
                await lifecycle.start(bus, workflow_id, actor=scene.ACTOR)
                return
        except Unavailable:
            pass
        await asyncio.sleep(_POLL_SECONDS)


async def until_idle(bus: Bus) -> None:
    """Wait until no event is open anywhere."""
    operations = operations_of(bus)
    while any(stream.pending or stream.processing for stream in await operations.stats()):  # noqa: ASYNC110 - a store has no notification
        await asyncio.sleep(_POLL_SECONDS)
