"""A running engine on a real bus, and fake hosts whose answers the test chooses."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from kingdom.bus import Bus, Dispatcher, Envelope, Event, LogCursor, LogEntry, Operations, Transaction, Worker
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import register_host
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.messages.catalog import COMMAND_TYPES
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import event_envelope
from kingdom.workflow.registry import create_git, register_mcp_server
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.templates import create_template
from tests.contract.backends import BackendUnderTest
from tests.patience import PATIENCE_SECONDS
from tests.unit.workflow.model.host import fail, succeed
from tests.unit.workflow.model.scene import template

LEASE = timedelta(minutes=5)
ANNA = "anna"
_POLL = timedelta(milliseconds=20)
_LOOK_SECONDS = 0.005
_LOG_PAGE = 1000


class FakeHost:
    """A fake soldier host. It collects its commands in `open`, or answers them at once if it `obeys`."""

    def __init__(self, name: str, *, obeys: bool) -> None:
        self.name = name
        self.open: list[commands.HostCommand] = []
        self.taken: list[commands.HostCommand] = []
        self._obeys = obeys
        self._seen: set[UUID] = set()

    def dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher()
        for kind, event_type in COMMAND_TYPES.items():
            stream = f"soldier.{self.name}.control" if commands.COMMANDS[kind].control else f"soldier.{self.name}"
            dispatcher.reaction(event_type, stream=stream)(self._take)
        return dispatcher

    async def _take(self, received: Event[commands.HostCommand], transaction: Transaction) -> None:
        command = received.payload
        if self._obeys:
            await transaction.publish(*(answer_envelope(answer, command.workflow_id) for answer in succeed(command)))
        # Record it before the commit, so that it is known when the stream is empty. A rerun must not add it again.
        if received.envelope.event_id not in self._seen:
            self._seen.add(received.envelope.event_id)
            self.taken.append(command)
            self.open += [] if self._obeys else [command]


class Scene:
    """A store with a running engine. People and hosts act through the bus."""

    def __init__(self, bus: Bus, operations: Operations, stack: AsyncExitStack) -> None:
        self.bus = bus
        self.operations = operations
        self.hosts: dict[str, FakeHost] = {}
        self._stack = stack
        self._numbers = itertools.count(1)

    async def start_host(self, name: str = "host-a", *, slots: int = 4, obeys: bool = False) -> Host:
        """Let a host register and take commands."""
        if name not in self.hosts:
            fake = self.hosts[name] = FakeHost(name, obeys=obeys)
            streams = (f"soldier.{name}", f"soldier.{name}.control")
            await self._stack.enter_async_context(_at_work(self.bus, fake.dispatcher(), *streams))
        host = await register_host(self.bus, name, slots, LEASE)
        await self.settle()
        return host

    async def register_repositories(self, *git_ids: str, checkpoint_remote: str = "") -> None:
        for git_id in git_ids:
            url = f"https://example.org/{git_id}.git"
            git = Git(id=git_id, name=git_id, url=url, checkpoint_remote=checkpoint_remote)
            await create_git(self.bus, git, actor=ANNA)

    async def register_server(self, server_id: str) -> None:
        server = McpServer(id=server_id, name=server_id, transport=McpTransport.STDIO, command=("serve",))
        await register_mcp_server(self.bus, server, actor=ANNA)

    async def create_run(self, made_from: WorkflowTemplate | None = None, **more: Any) -> str:
        """Store a template under a fresh id and make a run from it."""
        definition = made_from or template(**more)
        fresh = WorkflowTemplate(
            id=f"tpl-{next(self._numbers)}",
            name=definition.name,
            works=definition.works,
            git_refs=definition.git_refs,
            mcp_server_refs=definition.mcp_server_refs,
            policy=definition.policy,
        )
        await create_template(self.bus, fresh, actor=ANNA)
        return (await lifecycle.create(self.bus, fresh.id, actor=ANNA)).id

    async def settle(self) -> None:
        """Wait until every event is handled. A handler settles and publishes in one transaction."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while open_streams := [
            stats for stats in await self.operations.stats() if stats.pending or stats.processing or stats.dead
        ]:
            assert not any(stats.dead for stats in open_streams), open_streams
            assert time.monotonic() < deadline, open_streams
            await asyncio.sleep(_LOOK_SECONDS)

    async def publish_answers(self, workflow_id: str, *host_answers: answers.HostAnswer) -> None:
        """Publish answers of a host, and wait for all reactions."""
        for answer in host_answers:
            await self.bus.publish(answer_envelope(answer, workflow_id))
        await self.settle()

    async def succeed(self, workflow_id: str, kind: type[commands.HostCommand]) -> None:
        """Answer the one open command of a kind with success."""
        await self.publish_answers(workflow_id, *succeed(self.pick(workflow_id, kind)))

    async def fail(self, workflow_id: str, kind: type[commands.HostCommand]) -> None:
        """Answer the one open command of a kind with a failure."""
        await self.publish_answers(workflow_id, fail(self.pick(workflow_id, kind)))

    async def until(self, workflow_id: str, kind: type[commands.HostCommand], work: int | None = None) -> Any:
        """Answer commands of a run with success until a command of this kind is open, for the given Work if any."""
        wanted_work = f"{workflow_id}-w{work + 1}" if work is not None else None
        for _ in range(100):
            mine = self.commands_for(workflow_id)
            for command in mine:
                if isinstance(command, kind) and wanted_work in (None, getattr(command, "work_id", None)):
                    return command
            assert mine, f"no {kind.__name__} came"
            await self.succeed(workflow_id, type(mine[0]))
        raise AssertionError(f"no {kind.__name__} came")

    async def finish(self, workflow_id: str) -> Workflow:
        """Answer all commands of a run with success until none is open."""
        while mine := self.commands_for(workflow_id):
            await self.publish_answers(workflow_id, *succeed(self._drop(mine[0])))
        return await self.show(workflow_id)

    def commands_for(self, workflow_id: str) -> list[commands.HostCommand]:
        """Return the unanswered commands of a run, stop commands first."""
        found = [each for host in self.hosts.values() for each in host.open if each.workflow_id == workflow_id]
        return sorted(found, key=lambda command: not command.stream.endswith(".control"))

    def pick(self, workflow_id: str, kind: type[commands.HostCommand]) -> Any:
        """Remove and return the one open command of a kind."""
        found = [command for command in self.commands_for(workflow_id) if isinstance(command, kind)]
        assert len(found) == 1, f"{len(found)} of {kind.__name__} among {self.commands_for(workflow_id)}"
        return self._drop(found[0])

    async def show(self, workflow_id: str) -> Workflow:
        return await lifecycle.show(self.bus, workflow_id)

    async def log(self, after: LogCursor | None = None) -> list[LogEntry]:
        """Return all log entries after a cursor."""
        entries: list[LogEntry] = []
        cursor = after or LogCursor()
        while page := await self.operations.read_log(cursor, _LOG_PAGE):
            entries += [logged.entry for logged in page]
            cursor = page[-1].cursor
        return entries

    async def logged(self, workflow_id: str, *types: type[DomainEvent]) -> list[LogEntry]:
        """Return the log entries of a run, optionally only of some types."""
        names = [kind.__name__ for kind in types]
        entries = [entry for entry in await self.log() if entry.aggregate_id == workflow_id]
        return [entry for entry in entries if not names or entry.type in names]

    def _drop(self, command: commands.HostCommand) -> commands.HostCommand:
        for host in self.hosts.values():
            host.open = [each for each in host.open if each is not command]
        return command


def answer_envelope(answer: answers.HostAnswer, workflow_id: str) -> Envelope:
    """Return the envelope in which a host publishes an answer."""
    return event_envelope(answer, "Workflow", workflow_id)


@asynccontextmanager
async def opened(
    backend: BackendUnderTest, *, engines: int = 1, scene_class: type[Scene] = Scene
) -> AsyncIterator[Scene]:
    """Open a store with this many running engines, each with its own bus."""
    application = engine()
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(backend.open(application.topology, application.kinds))
            for _ in range(engines)
        ]
        for bus in buses:
            await stack.enter_async_context(_at_work(bus, engine().dispatcher, *ENGINE_STREAMS))
        yield scene_class(buses[0], backend.operations(buses[0]), stack)


@asynccontextmanager
async def _at_work(bus: Bus, dispatcher: Dispatcher, *streams: str) -> AsyncIterator[None]:
    worker = Worker(bus, dispatcher, streams, poll=_POLL, grace=timedelta(seconds=5))
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
