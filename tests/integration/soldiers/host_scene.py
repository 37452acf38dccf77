"""An engine and soldier hosts running on a real store, with real git and the scripted agent."""

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.crash_sweep.scene import make_repository
from kingdom.bus import Bus, LogCursor, LogEntry, Record, RecordQuery, Transaction, Worker
from kingdom.clock import utc_now
from kingdom.soldiers.agents.port import AgentClient
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_entries
from kingdom.soldiers.host.host import ENVIRONMENT, SoldierHost
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import known_hosts, renew_host
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.model.resources.template import RunPolicy, TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import ACCEPTED, COMMANDS, WORKFLOWS, load_resource, run_transaction, save_resource
from kingdom.workflow.registry import create_git
from kingdom.workflow.streams import ENGINE_STREAMS, REGISTRY_STREAM
from kingdom.workflow.templates import create_template
from kingdom.workflow.timers import run_timers
from tests.contract.backends import BackendUnderTest
from tests.fakes.agent_environment import UNCONFINED
from tests.fakes.scripts import scripted
from tests.integration.processes import Child, child
from tests.integration.running import eventually
from tests.integration.soldiers.processes import MARK, marked, until_none
from tests.integration.soldiers.sources import make_bare, run
from tests.patience import PATIENCE_SECONDS
from tests.unit.workflow.model.invariants import STOPPED, contradictions

ANNA = "anna"
APP = "app"
# Long enough that no host loses its lease because the machine is slow.
LEASE = timedelta(minutes=5)
_POLL = timedelta(milliseconds=20)
_WATCH_EVERY = timedelta(milliseconds=100)
_LOOK_SECONDS = 0.01
_LOG_PAGE = 1000
OUTLINE = (ReportSection(title="Report", description="What was done."),)


def task(*steps: dict[str, Any], **definition: Any) -> TaskDefinition:
    """Return a Task whose agent follows a script."""
    return TaskDefinition(query=scripted(*steps), **definition)


def work(name: str, *tasks: TaskDefinition, **definition: Any) -> WorkDefinition:
    """Return a Work of some Tasks."""
    return WorkDefinition(name=name, tasks=tasks, **definition)


def writes(name: str, *more: dict[str, Any], report: bool = True) -> WorkDefinition:
    """Return a Work of one Task that writes a file named after the Work, takes more steps and leaves a report."""
    steps = ({"write": f"{APP}/{name}.txt", "text": f"by {name}\n"}, *more, {"report": f"# Report of {name}\n"})
    return work(name, task(*steps, report_outline=OUTLINE if report else ()))


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """A step of a script at which each agent waits until the test continues it."""

    is_there: Path
    may_go: Path

    @property
    def steps(self) -> tuple[dict[str, Any], ...]:
        return {"write": str(self.is_there)}, {"wait_for": str(self.may_go)}

    async def reached(self) -> None:
        """Wait until an agent has reached the step."""

        async def there() -> bool:
            return self.is_there.exists()

        await eventually(there)

    def release(self) -> None:
        self.may_go.touch()


class HostScene:
    """A store with a running engine. All hosts have directories in one folder, and all agents have the same mark."""

    def __init__(self, backend: BackendUnderTest, bus: Bus, folder: Path, stack: AsyncExitStack) -> None:
        self.backend = backend
        self.bus = bus
        self.operations = backend.operations(bus)
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._stack = stack
        self._numbers = itertools.count(1)
        self._running: dict[SoldierHost, asyncio.Task[None]] = {}

    def folders(self, host: str = "host-a") -> HostFolders:
        """Return the folders of a host."""
        return HostFolders(self.folder / host)

    async def register_repository(self, name: str = APP) -> None:
        """Create a repository and register it."""
        source = make_repository(self.folder / "sources" / name)
        await create_git(self.bus, Git(id=name, name=name, url=str(source)), actor=ANNA)

    def copy_env_file(self, content: str) -> AgentEnvironment:
        """Make hosts with the returned environment copy a file `.env` into each checkout."""
        files, source = self.folder / "files", self.folder / "sources" / APP
        (files / APP).mkdir(parents=True)
        (files / APP / ".env").write_text(content)
        for name in (".worktreeinclude", ".gitignore"):
            (source / name).write_text(".env\n")
        run("add", "--all", cwd=source)
        run("commit", "--quiet", "-m", "environment", cwd=source)
        return replace(UNCONFINED, checkout_setup=CheckoutSetup(files=files))

    async def share_checkpoints(self) -> None:
        """Set a checkpoint remote that all hosts share."""
        remote = make_bare(self.folder / "checkpoints.git")
        async with self.bus.transaction() as transaction:
            record, git = await load_resource(transaction, Git, APP)
            await save_resource(transaction, msgspec.structs.replace(git, checkpoint_remote=str(remote)), record)

    async def start_host(
        self,
        name: str = "host-a",
        *,
        client: AgentClient | None = None,
        agent_environment: AgentEnvironment = UNCONFINED,
        slots: int = 4,
        lease: timedelta = LEASE,
        wrap: Callable[[Bus], Bus] = lambda bus: bus,
        texts: RunTexts | None = None,
    ) -> SoldierHost:
        """Start a host in this process, on its own bus, and wait until it is registered."""
        application = engine()
        bus = await self._stack.enter_async_context(self.backend.open(application.topology, application.kinds))
        epoch = await self.epoch_of(name)
        host = SoldierHost(
            wrap(bus),
            name,
            client or ScriptedAgentClient(),
            self.folders(name),
            slots=slots,
            lease=lease,
            environment={**ENVIRONMENT, MARK: self.mark},
            agent_environment=agent_environment,
            texts=texts,
        )
        self._running[host] = asyncio.create_task(host.run())
        self._stack.push_async_callback(self.stop_host, host)
        await self.until_registered(name, epoch + 1, self._running[host])
        return host

    async def stop_host(self, host: SoldierHost) -> None:
        """End a host of this process, unless it has already ended."""
        host.stop()
        if running := self._running.pop(host, None):
            await asyncio.wait_for(running, PATIENCE_SECONDS)

    async def ended(self, host: SoldierHost) -> None:
        """Wait until a host of this process ends by itself, and raise its error."""
        await asyncio.wait_for(self._running.pop(host), PATIENCE_SECONDS)

    async def start_child(self, name: str, *, slots: int = 4, **more: Any) -> Child:
        """Start a host as its own process, and wait until it is registered."""
        epoch = await self.epoch_of(name)
        started = await self._stack.enter_async_context(
            child(
                "integration.soldiers.host_child",
                backend=self.backend.name,
                place=self.backend.place,
                name=name,
                directory=str(self.folder / name),
                slots=slots,
                lease_seconds=LEASE.total_seconds(),
                mark=self.mark,
                **more,
            )
        )
        await self.until_registered(name, epoch + 1)
        return started

    async def host(self, name: str) -> Host | None:
        async with self.bus.transaction() as transaction:
            return next((host for host in await known_hosts(transaction) if host.id == name), None)

    async def epoch_of(self, name: str) -> int:
        host = await self.host(name)
        return host.epoch if host else 0

    async def until_registered(self, name: str, epoch: int, running: asyncio.Task[None] | None = None) -> None:
        """Wait until a host is up under this epoch or a later one, and the engine knows it.

        A run that is placed on the host earlier is placed a second time, because the host seems to have restarted.
        """

        async def registered() -> bool:
            if running and running.done():
                running.result()
            host = await self.host(name)
            return host is not None and host.epoch >= epoch and host.status is HostStatus.UP

        async def is_known() -> bool:
            stats = await self.operations.stats()
            return not any(each.pending or each.processing for each in stats if each.stream == REGISTRY_STREAM.name)

        await eventually(registered)
        await eventually(is_known)

    async def shorten_lease(self, name: str) -> None:
        """Expire the lease of a stopped host at once."""
        host = await self.host(name)
        assert host is not None
        await renew_host(self.bus, host, host.busy, timedelta(0))

    async def until_lost(self, name: str) -> None:
        """Wait until a host counts as lost."""

        async def lost() -> bool:
            host = await self.host(name)
            return host is not None and host.status is HostStatus.LOST

        await eventually(lost)

    async def create_run(
        self, *works: WorkDefinition, policy: RunPolicy | None = None, git_refs: Iterable[GitRef] | None = None
    ) -> Workflow:
        """Create a run of some Works on the one repository, or on the repositories of `git_refs`."""
        number = next(self._numbers)
        refs = (GitRef(git_id=APP, base_branch="main"),) if git_refs is None else tuple(git_refs)
        definition = WorkflowTemplate(
            id=f"template-{number}", name=f"Run {number}", works=works, git_refs=refs, policy=policy or RunPolicy()
        )
        await create_template(self.bus, definition, actor=ANNA)
        return await lifecycle.create(self.bus, definition.id, actor=ANNA)

    async def begin(self, *works: WorkDefinition, **options: Any) -> Workflow:
        """Create a run and start it."""
        return await lifecycle.start(self.bus, (await self.create_run(*works, **options)).id, actor=ANNA)

    async def show(self, workflow: Workflow) -> Workflow:
        return await lifecycle.show(self.bus, workflow.id)

    async def until(self, workflow: Workflow, status: WorkflowStatus) -> Workflow:
        """Wait until a run has a status. Fail if it stops with another one."""

        def reached(now: Workflow) -> bool:
            assert now.status is status or now.status not in STOPPED, f"{now.status}: {now.reason}"
            return now.status is status

        return await self.until_true(workflow, reached)

    async def until_true(self, workflow: Workflow, true: Callable[[Workflow], bool]) -> Workflow:
        """Wait until a condition holds for a run, and check its invariants in the meantime."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            now = await self.show(workflow)
            assert contradictions(now) == []
            if true(now):
                return now
            assert time.monotonic() < deadline, f"{now.status}: {now.reason}, {json.dumps(now.document(), default=str)}"
            await asyncio.sleep(_LOOK_SECONDS)

    async def fall_due(self, workflow: Workflow) -> None:
        """Make the timer of a run due now."""

        async def act(transaction: Transaction) -> None:
            record = await transaction.get(WORKFLOWS.name, workflow.id)
            assert record
            assert record.due_at
            await transaction.put(record.replace(due_at=utc_now() - timedelta(seconds=1)))

        await run_transaction(self.bus, act)

    async def record(self, workflow: Workflow) -> bytes:
        """Return the stored document of a run as bytes, with its version."""
        async with self.bus.transaction() as transaction:
            record = await transaction.get(WORKFLOWS.name, workflow.id)
        return msgspec.json.encode(record)

    async def logged(self, workflow: Workflow, *types: type[DomainEvent]) -> list[LogEntry]:
        """Return the log entries of a run, optionally only of some types."""
        names = [kind.__name__ for kind in types]
        entries: list[LogEntry] = []
        cursor = LogCursor()
        while page := await self.operations.read_log(cursor, _LOG_PAGE, workflow.id):
            entries += [logged.entry for logged in page]
            cursor = page[-1].cursor
        return [entry for entry in entries if not names or entry.type in names]

    async def settle(self) -> None:
        """Wait until every event has been handled."""

        async def settled() -> bool:
            stats = await self.operations.stats()
            assert not any(each.dead for each in stats), stats
            return not any(each.pending or each.processing for each in stats)

        await eventually(settled)

    async def accepted(self) -> list[Record]:
        """Return the commands that hosts have accepted and not answered."""
        async with self.bus.transaction() as transaction:
            return await transaction.find(RecordQuery(kind=COMMANDS.name, state=ACCEPTED))

    async def until_all_answered(self) -> None:
        """Wait until no host has anything left to do."""

        async def answered() -> bool:
            return not await self.accepted()

        await self.settle()
        await eventually(answered)
        await self.settle()

    def transcript(self, work: Work, host: str = "host-a") -> list[TranscriptEntry]:
        """Return the transcript of the session of a Work."""
        assert work.agent.session is not None
        soldier_id = work.agent.session.partition("/")[0]
        return read_entries(self.folders(host).transcript(soldier_id))

    def wait_point(self, name: str) -> "WaitPoint":
        """Return a step of a script at which an agent waits until the test continues it."""
        return WaitPoint(self.folder / f"{name}-is-there", self.folder / f"{name}-may-go")

    def tree(self, workflow: Workflow, host: str = "host-a") -> Path:
        """Return the first checkout of a run."""
        return self.folders(host).checkout(workflow.id, workflow.work_trees[0].id)

    def bare(self, host: str = "host-a", name: str = APP) -> Path:
        """Return the repository behind the checkouts of a host."""
        return next(self.folders(host).repositories.glob(f"{name}-*.git"))

    def space(self, workflow: Workflow, work: Work, host: str = "host-a") -> Path:
        """Return the WorkSpace of a Work."""
        assert work.work_space_id is not None
        return self.folders(host).work_space(workflow.general, work.work_space_id)

    def processes(self, words: str = "") -> list[str]:
        """Return the command lines of agents and of their programs that contain certain words."""
        return [command for command in marked(self.mark) if words in command]


@asynccontextmanager
async def opened(backend: BackendUnderTest, folder: Path) -> AsyncIterator[HostScene]:
    """Open a store with a running engine. At the end, no process of an agent may be left."""
    application = engine()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(backend.open(application.topology, application.kinds))
        await stack.enter_async_context(_engine_at_work(bus))
        async with AsyncExitStack() as hosts:
            scene = HostScene(backend, bus, folder, hosts)
            await scene.register_repository()
            yield scene
        await until_none(scene.mark)


@asynccontextmanager
async def _engine_at_work(bus: Bus) -> AsyncIterator[None]:
    worker = Worker(bus, engine().dispatcher, ENGINE_STREAMS, poll=_POLL, grace=timedelta(seconds=5))
    working, watching = asyncio.create_task(worker.run()), asyncio.create_task(run_timers(bus, _WATCH_EVERY))
    try:
        yield
    finally:
        watching.cancel()
        worker.stop()
        await asyncio.wait_for(working, PATIENCE_SECONDS)
        await asyncio.wait({watching})
