"""King, Generals, engine and a soldier host running on a real store, with real git and the scripted agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from bench.crash_sweep.scene import make_repository
from kingdom.bus import EFFECTS, Bus, Dispatcher, LogCursor, Record, RecordQuery, Transaction, Worker
from kingdom.bus.sequence import SEQUENCES
from kingdom.clock import utc_now
from kingdom.court import records
from kingdom.court.chamberlain.records import KINDS as CHAMBERLAIN_KINDS
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, MessageType, Priority
from kingdom.court.general.context import GeneralContext
from kingdom.court.general.reactions import register, streams_of
from kingdom.court.king import reactions as kings
from kingdom.court.king.context import KingContext
from kingdom.court.king.records import KINDS as KING_KINDS
from kingdom.court.king.settings import KingSettings
from kingdom.court.package import General, GeneralPolicy, Package, Subscription
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.records import ASSIGNMENTS, receive_event
from kingdom.court.streams import TOPOLOGY
from kingdom.ids import new_id
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from kingdom.workflow.registry import create_git
from kingdom.workflow.streams import ENGINE_STREAMS
from tests.contract.backends import BackendUnderTest
from tests.fakes.agent_environment import UNCONFINED
from tests.fakes.scripts import scripted
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

GENERAL = "gen-test"
REPO = "acme/app"
EVENT_REPO = (GitRef(git_id="event-repo", base_branch=""),)
EVERY_KIND = (
    *(EFFECTS, SEQUENCES, PETITIONS),
    *WORKFLOW_KINDS,
    *records.KINDS,
    *KING_KINDS,
    *CHAMBERLAIN_KINDS,
)
_POLL = timedelta(milliseconds=20)


def reports(**result: Any) -> dict[str, Any]:
    """Return the step of a script that reports a result."""
    return {"write": "result.json", "text": json.dumps(result)}


def work(name: str, *steps: dict[str, Any], **more: Any) -> WorkDefinition:
    """Return a Work of one Task whose agent follows a script."""
    return WorkDefinition(name=name, tasks=(TaskDefinition(query=scripted(*steps)),), **more)


def package(
    *works: WorkDefinition, directory: Path, git_refs: tuple[GitRef, ...] = EVENT_REPO, **policy: Any
) -> Package:
    """Return a General that subscribes to every event, and retries at once if `retries` allows it."""
    general = General(
        name=GENERAL,
        description="Does what its script says.",
        subscribes=(Subscription(type="*"),),
        policy=GeneralPolicy(**{"retry_after_seconds": 0, "retries": 0, **policy}),
    )
    template = WorkflowTemplate(id="test", name="Test", works=works, git_refs=git_refs)
    return Package(general=general, template=template, directory=str(directory))


class CourtScene:
    """A court with one General and one host. The test answers for people."""

    def __init__(self, backend: BackendUnderTest, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.folder = folder
        self.realm = folder / "realm"
        self.packages: dict[str, Package] = {}
        self.operations = backend.operations(bus)

    def has(self, *works: WorkDefinition, **more: Any) -> None:
        """Set the Works of the General's next runs."""
        self.packages[GENERAL] = package(*works, directory=self.folder / "generals" / GENERAL, **more)

    async def send_event(self, *, repo: str = REPO, **payload: Any) -> str:
        """Store an external event and return its id."""
        event = ExternalEvent(
            id=new_id("evt-github"),
            type="github.pr.review_requested",
            source="github",
            repo=repo,
            payload={"number": 7, **payload},
            priority=Priority.NORMAL,
            created_at=utc_now(),
            status=EventStatus.PENDING,
        )
        async with self.bus.transaction() as transaction:
            assert await receive_event(transaction, event, "sentinel")
        return event.id

    async def answer(self, assignment_id: str, text: str, together: Transaction | None = None) -> str:
        """Submit the answer of a person in a transaction."""
        event = ExternalEvent(
            id=new_id(f"evt-cli-response-{assignment_id}"),
            type="cli.human_response",
            source="cli",
            repo=None,
            payload={"task_id": assignment_id, "text": text, "person": "anna"},
            priority=Priority.HIGH,
            created_at=utc_now(),
            status=EventStatus.PENDING,
        )
        async with nullcontext(together) if together else self.bus.transaction() as transaction:
            assert await receive_event(transaction, event, "envoy")
        return event.id

    async def event(self, event_id: str) -> ExternalEvent:
        async with self.bus.transaction() as transaction:
            return (await records.load(transaction, ExternalEvent, event_id))[1]

    async def until_event(self, event_id: str, status: EventStatus) -> ExternalEvent:
        """Wait until an event has this status."""

        async def there() -> bool:
            return (await self.event(event_id)).status is status

        await eventually(there)
        return await self.event(event_id)

    async def assignments(self) -> list[Assignment]:
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind=ASSIGNMENTS.name))
        return [msgspec.convert(record.doc, Assignment) for record in found]

    async def until_assignment(self, status: AssignmentStatus) -> Assignment:
        """Wait until the newest assignment has this status."""

        async def there() -> bool:
            known = await self.assignments()
            return bool(known) and known[-1].status is status

        await eventually(there)
        return (await self.assignments())[-1]

    async def record(self, kind: str, record_id: str) -> Record | None:
        async with self.bus.transaction() as transaction:
            return await transaction.get(kind, record_id)

    async def result(self, assignment_id: str) -> dict[str, Any]:
        record = await self.record(records.RESULTS.name, assignment_id)
        assert record, f"there is no result of {assignment_id}"
        return dict(record.doc)

    async def logged(self, *types: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the log entries of some types, in order."""
        entries = await self.operations.read_log(LogCursor(), 1000)
        return [(each.entry.type, dict(each.entry.data)) for each in entries if each.entry.type in types]

    async def messages(self, kind: MessageType) -> list[str]:
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind=records.MESSAGES.name))
        return [str(record.doc["content"]) for record in found if record.doc["type"] == kind]

    async def held(self) -> dict[str, Any]:
        """Return the used amount of each quota."""
        async with self.bus.transaction() as transaction:
            quotas = await transaction.find(RecordQuery(kind="quota"))
        return {record.id: record.doc["holders"] for record in quotas if record.doc.get("holders")}

    async def until_nothing_is_held(self) -> None:
        """Wait until all quotas are free: slots are freed after the event has ended, when the run has stopped."""

        async def free() -> bool:
            return not await self.held()

        await eventually(free)


@asynccontextmanager
async def opened(backend: BackendUnderTest, folder: Path, *, with_host: bool = True) -> AsyncIterator[CourtScene]:
    """Open a court with all roles running, and a repository."""
    async with at_work(backend, folder, with_host=with_host) as scene:
        source = make_repository(folder / "sources" / "app")
        await create_git(scene.bus, Git(id="acme-app", name="app", url=str(source), repo=REPO), actor="anna")
        yield scene


@asynccontextmanager
async def at_work(backend: BackendUnderTest, folder: Path, *, with_host: bool = True) -> AsyncIterator[CourtScene]:
    """Run all roles on an existing store."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(backend.open(TOPOLOGY, EVERY_KIND))
        scene = CourtScene(backend, bus, folder)
        zone = ZoneInfo("Asia/Seoul")
        staff = GeneralContext(
            packages=lambda: scene.packages, channel="kingdom", zone=zone, clock=utc_now, directory=scene.realm
        )
        dispatcher: Dispatcher = engine().dispatcher
        settings = KingSettings(reserved_usd=1)
        kings.register(
            dispatcher, KingContext(settings=settings, packages=lambda: list(scene.packages.values()), zone=zone)
        )
        register(dispatcher, staff)
        streams = (*ENGINE_STREAMS, *kings.STREAMS, *streams_of([GENERAL]))
        parts: list[Worker | SoldierHost] = [Worker(bus, dispatcher, streams, poll=_POLL)]
        if with_host:
            own = await stack.enter_async_context(backend.open(TOPOLOGY, EVERY_KIND))
            parts.append(
                SoldierHost(
                    own,
                    "host-a",
                    ScriptedAgentClient(),
                    HostFolders(folder / "host-a", scene.realm / "state" / "results"),
                    slots=4,
                    agent_environment=UNCONFINED,
                )
            )
        running = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield scene
        finally:
            for part in reversed(parts):
                part.stop()
            await asyncio.wait_for(asyncio.gather(*running), PATIENCE_SECONDS)
