"""Run the product as a user does: runs of 3 Works with 2 Tasks each, without checkouts, all started at once.

`python -m bench.engine.kingdom DSN RUNS` runs them in its own process and prints the time that this took.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from bench.engine.agent import InstantAgents
from bench.engine.process_times import ProcessTimes
from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.bus.worker import Worker
from kingdom.cli.framework.long_running import collect_garbage_rarely
from kingdom.log_output import configure_logs
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import HOSTS, TEMPLATES, publish_events, save_resource
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.timers import run_timers

WORKS, TASKS = 3, 2
TASKS_PER_RUN = WORKS * TASKS
# A step is one command with its answer. Each Work has these: start, one query per Task, checks, checkpoint.
STEPS_PER_RUN = WORKS * (TASKS + 3)
CONNECTIONS = 8
_ACTOR = "bench"
_HOST = "host-a"
_STARTERS = 16
_LOOK_SECONDS = 0.05
_HOST_SECONDS = 120
_LOST = {WorkflowStatus.FAILED, WorkflowStatus.AWAITING, WorkflowStatus.CANCELLED}
_UNFINISHED = "SELECT state, count(*) FROM kingdom.record WHERE kind = 'workflow' AND state = ANY(%s) GROUP BY state"
_REASONS = "SELECT id, doc ->> 'reason' FROM kingdom.record WHERE kind = 'workflow' AND state = ANY(%s) LIMIT 3"
_HOST_IS_THERE = """
SELECT 1 FROM kingdom.record WHERE kind = 'host' AND id = %s AND (doc ->> 'epoch')::int > %s
   AND NOT EXISTS (SELECT FROM kingdom.outbox_event WHERE stream = 'registry' AND processed_at IS NULL)
"""
_TEMPLATE = WorkflowTemplate(
    id="instant",
    name="Instant",
    works=tuple(
        WorkDefinition(
            name=f"work {work}",
            tasks=tuple(
                TaskDefinition(query=f"Do task {task} of work {work}: " + "change what has to be changed. " * 8)
                for task in range(1, TASKS + 1)
            ),
        )
        for work in range(1, WORKS + 1)
    ),
)


@asynccontextmanager
async def kingdom_at_work(bus: Bus, dsn: str, directory: Path, *, slots: int = 1000) -> AsyncIterator[None]:
    """Run an engine and a host in this process."""
    earlier = await _store_template(bus)
    worker = Worker(bus, engine().dispatcher, ENGINE_STREAMS)
    host = SoldierHost(
        bus,
        _HOST,
        InstantAgents(),
        HostFolders(directory),
        slots=slots,
        agent_environment=AgentEnvironment(profile=SandboxProfile.STRICT),
    )
    tasks = [asyncio.create_task(part) for part in (worker.run(), host.run())]
    watching = asyncio.create_task(run_timers(bus))
    try:
        await _wait_for_host(dsn, earlier)
        yield
    finally:
        worker.stop()
        host.stop()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.gather(*tasks)


async def start_runs(bus: Bus, runs: int) -> list[str]:
    """Create and start runs, a few at a time."""
    starters = asyncio.Semaphore(_STARTERS)

    async def start_one() -> str:
        async with starters:
            workflow = await lifecycle.create(bus, _TEMPLATE.id, actor=_ACTOR)
            await lifecycle.start(bus, workflow.id, actor=_ACTOR)
            return workflow.id

    return await asyncio.gather(*(start_one() for _ in range(runs)))


async def wait_until_completed(dsn: str, *, patience: timedelta = timedelta(minutes=10)) -> None:
    """Wait on a separate connection until every run is completed; raise if one does not complete."""
    unfinished = [state for state in WorkflowStatus if state is not WorkflowStatus.COMPLETED]
    async with asyncio.timeout(patience.total_seconds()), await _connect(dsn) as connection:
        while True:
            cursor = await connection.execute(_UNFINISHED, (unfinished,))
            if not (found := dict(await cursor.fetchall())):
                return
            if found.keys() & _LOST:
                lost = await connection.execute(_REASONS, (list(_LOST),))
                raise RuntimeError(f"runs did not complete, so there is nothing to measure: {await lost.fetchall()}")
            await asyncio.sleep(_LOOK_SECONDS)


async def measure(dsn: str, runs: int) -> ProcessTimes:
    """Return the elapsed and the processor time from the first creation to the last completion."""
    app = engine()
    with tempfile.TemporaryDirectory(prefix="kingdom-bench-") as directory:
        async with (
            open_bus(dsn, app.topology, app.kinds, connections=CONNECTIONS) as bus,
            kingdom_at_work(bus, dsn, Path(directory)),
        ):
            # As every role does before it begins.
            collect_garbage_rarely()
            began = ProcessTimes.now()
            await start_runs(bus, runs)
            await wait_until_completed(dsn)
            return ProcessTimes.now() - began


async def _store_template(bus: Bus) -> int:
    """Store the template if needed, and return the last epoch of the host."""
    async with bus.transaction() as transaction:
        if await transaction.get(TEMPLATES.name, _TEMPLATE.id) is None:
            await save_resource(transaction, _TEMPLATE, None)
            created = _TEMPLATE.created_event()
            await publish_events(transaction, [created], aggregate="WorkflowTemplate", key=_TEMPLATE.id, actor=_ACTOR)
        host = await transaction.get(HOSTS.name, _HOST)
        return int(host.doc["epoch"]) if host else 0


async def _wait_for_host(dsn: str, earlier: int) -> None:
    """Wait until the engine knows the host. Runs that start before that would be placed twice."""
    async with asyncio.timeout(_HOST_SECONDS), await _connect(dsn) as connection:
        while True:
            cursor = await connection.execute(_HOST_IS_THERE, (_HOST, earlier))
            if await cursor.fetchone():
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def _connect(dsn: str) -> psycopg.AsyncConnection[tuple[Any, Any]]:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


if __name__ == "__main__":
    configure_logs(json=True, level=logging.ERROR)
    print(asyncio.run(measure(sys.argv[1], int(sys.argv[2]))).to_json())
