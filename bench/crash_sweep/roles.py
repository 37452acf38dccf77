"""The processes of a run: the engine, the host, and the client that starts the run and waits for its end."""

import asyncio
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.crash_sweep import scene
from bench.crash_sweep.steps import ENGINE, HOST, Point, Steps
from bench.crash_sweep.swept import SweptAgents, SweptBus, SweptLoop
from bench.crash_sweep.variants import VARIANTS
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.port import Bus
from kingdom.bus.stream import Topology
from kingdom.bus.worker import Worker
from kingdom.errors import Unavailable
from kingdom.soldiers.agent_kinds import AGENT_KINDS as AGENTS
from kingdom.soldiers.agent_kinds import build_agent_environment
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle, streams
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import KINDS
from kingdom.workflow.timers import run_timers

CLIENT = "client"
HOST_NAME = "host-a"
_SLOTS = 2
# The leases of a killed process expire after this time, if nothing else shows that the process is dead. A busy machine
# does not delay a process for so long: a lease that is lost without a crash would be a finding.
_LEASE = timedelta(seconds=5)
_POLL_SECONDS = 0.1
_IDLE_LIMIT_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1
_ENDINGS = {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
TOPOLOGY = Topology(
    replace(stream, lease=_LEASE)
    for stream in (streams.WORKFLOW_STREAM, streams.REGISTRY_STREAM, streams.COMMAND_STREAM, streams.CONTROL_STREAM)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The setting of one run: its store, directory, time limit and broken variant.

    `soldiers` are the settings of its agents.
    """

    url: str
    directory: Path
    seconds: float
    soldiers: SoldierSettings = field(default_factory=SoldierSettings)
    variant: str | None = None

    @property
    def host_directory(self) -> Path:
        """Return the directory of the host."""
        return self.directory / HOST_NAME

    @property
    def note(self) -> Path:
        """Return the file in which the victim records its last step."""
        return self.directory / "last-step"

    @property
    def outcome(self) -> Path:
        """Return the file in which the client records the end of the run."""
        return self.directory / "outcome.json"

    def log(self, role: str) -> Path:
        """Return the file with the output of a process."""
        return self.directory / f"{role}.log"

    def counts(self, role: str) -> Path:
        """Return the file in which a process records its number of steps when it ends normally."""
        return self.directory / f"{role}.steps"


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run, as its client saw it."""

    workflow_id: str
    status: str
    reason: str
    seconds: float


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bus]:
    """Open the store of a run."""
    async with open_bus(url, TOPOLOGY, KINDS, connections=4) as bus:
        yield bus


def start(role: str, stage: Stage, victim: Point | None = None) -> int:
    """Fork a process that dies with this one, and return its pid."""
    # Block SIGTERM until its handler is installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return pid
    code = 1
    try:
        die_with_parent()
        descriptor = os.open(stage.log(role), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        _play(role, stage, victim)
        code = 0
    except BaseException:  # noqa: BLE001 - every error belongs in the log of this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _play(role: str, stage: Stage, victim: Point | None) -> None:
    step_counter = Steps(role, victim, stage.note)
    if stage.variant:
        VARIANTS[stage.variant].break_it()
    with asyncio.Runner(loop_factory=lambda: SweptLoop(step_counter)) as runner:
        runner.run(_ROLES[role](stage, step_counter))
    stage.counts(role).write_bytes(msgspec.json.encode(step_counter.counts))


def _end_by(stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


async def _engine(stage: Stage, step_counter: Steps) -> None:
    async with opened(stage.url) as bus:
        swept = SweptBus(bus, step_counter)
        worker = Worker(swept, engine().dispatcher, streams.ENGINE_STREAMS)
        asked = asyncio.Event()
        _end_by(asked.set)

        async def stop_when_idle() -> None:
            await asked.wait()
            # A host may have restarted just when the run ended: handle its messages too.
            with suppress(TimeoutError):
                await asyncio.wait_for(_until_idle(bus), _IDLE_LIMIT_SECONDS)
            worker.stop()

        beside = [asyncio.create_task(each) for each in (run_timers(swept), stop_when_idle())]
        await worker.run()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _host(stage: Stage, step_counter: Steps) -> None:
    settings = stage.soldiers
    client = SweptAgents(AGENTS[settings.agent].client(settings), step_counter)
    async with opened(stage.url) as bus:
        host = SoldierHost(
            SweptBus(bus, step_counter),
            HOST_NAME,
            client,
            HostFolders(stage.host_directory),
            slots=_SLOTS,
            agent_environment=build_agent_environment(settings, lambda _: None, set()),
        )
        _end_by(host.stop)
        await host.run()


async def _client(stage: Stage, _: Steps) -> None:
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
                await _until_idle(bus)
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
                await _until_idle(bus)
                await lifecycle.start(bus, workflow_id, actor=scene.ACTOR)
                return
        except Unavailable:
            pass
        await asyncio.sleep(_POLL_SECONDS)


async def _until_idle(bus: Bus) -> None:
    """Wait until no event is open anywhere."""
    operations = operations_of(bus)
    while any(stream.pending or stream.processing for stream in await operations.stats()):  # noqa: ASYNC110 - a store has no notification
        await asyncio.sleep(_POLL_SECONDS)


_ROLES: dict[str, Callable[[Stage, Steps], Coroutine[Any, Any, None]]] = {ENGINE: _engine, HOST: _host, CLIENT: _client}
