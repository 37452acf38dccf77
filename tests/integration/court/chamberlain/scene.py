"""Chamberlains on a real store with a clock that the test moves. The test writes what other roles would write."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus import Bus, LogCursor, LogEntry, Operations, Record, RecordQuery
from kingdom.bus.sequence import SEQUENCES
from kingdom.chronicle.catalog import CATALOG
from kingdom.court import records
from kingdom.court.chamberlain.chamberlain import Chamberlain
from kingdom.court.chamberlain.health import CPU, DISK, MEMORY
from kingdom.court.chamberlain.records import KINDS as OWN_KINDS
from kingdom.court.chamberlain.sensor import Sensor
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Message, Priority
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.heartbeat import HEARTBEATS
from kingdom.court.king.release import BILLS
from kingdom.court.quota import QUOTAS
from kingdom.court.streams import TOPOLOGY
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import AgentStatus
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from tests.contract.backends import BackendUnderTest

SEOUL = ZoneInfo("Asia/Seoul")
START = datetime(2026, 2, 7, 1, tzinfo=UTC)

EVERY_KIND = (SEQUENCES, *WORKFLOW_KINDS, *records.KINDS, *OWN_KINDS, HEARTBEATS, QUOTAS, BILLS, ENVOYS, FOLLOWUPS)


class FakeSensor(Sensor):
    """A sensor whose values a test sets."""

    def __init__(self, name: str = "here") -> None:
        self.name = name
        self.used: dict[str, float] | None = {CPU: 10.0, MEMORY: 20.0, DISK: 30.0}

    async def read(self) -> dict[str, float]:
        if self.used is None:
            raise OSError("the sensor is broken")
        return dict(self.used)


class ChamberlainScene:
    """A store, a directory and a clock. A test creates any number of Chamberlains on them."""

    def __init__(self, bus: Bus, operations: Operations, directory: Path) -> None:
        self.bus = bus
        self.operations = operations
        self.directory = directory
        self.now = START
        self.sensor = FakeSensor()

    def forward(self, **by: float) -> datetime:
        self.now += timedelta(**by)
        return self.now

    def chamberlain(self, bus: Bus | None = None, **options: Any) -> Chamberlain:
        settings = options.pop("settings", ChamberlainSettings())
        defaults = {"sensor": self.sensor, "directory": self.directory}
        chosen = {**defaults, "zone": SEOUL, "clock": lambda: self.now, **options}
        return Chamberlain(bus or self.bus, self.operations, settings, **chosen)

    async def log(self, *entries: LogEntry) -> None:
        async with self.bus.transaction() as transaction:
            await transaction.append(*entries)

    async def put(self, record: Record) -> None:
        async with self.bus.transaction() as transaction:
            known = await transaction.get(record.kind, record.id)
            version = known.version if known else 0
            await transaction.put(
                Record(kind=record.kind, id=record.id, state=record.state, doc=record.doc, version=version)
            )

    async def document(self, kind: str, record_id: str) -> dict[str, Any]:
        async with self.bus.transaction() as transaction:
            record = await transaction.get(kind, record_id)
        assert record is not None
        return dict(record.doc)

    async def ids(self, kind: str) -> list[str]:
        async with self.bus.transaction() as transaction:
            return [record.id for record in await transaction.find(RecordQuery(kind=kind, limit=1000))]

    async def messages(self) -> list[Message]:
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind="message", limit=1000))
        return [msgspec.convert(record.doc, Message) for record in found]

    async def logged(self, event_type: str) -> list[dict[str, Any]]:
        """Return the data of all internal events of a type that the Chamberlain wrote."""
        entries = [each.entry for each in await self.operations.read_log(LogCursor(), 10_000)]
        return [dict(each.data) for each in entries if (each.type, each.actor) == (event_type, "chamberlain")]

    async def event_counts(self) -> Counter[str]:
        """Return how often the Chamberlain wrote each type of internal event."""
        entries = [each.entry for each in await self.operations.read_log(LogCursor(), 10_000)]
        return Counter(each.type for each in entries if each.actor == "chamberlain" and each.type in CATALOG)


def event(event_id: str, status: EventStatus = EventStatus.PENDING) -> Record:
    document = ExternalEvent(
        id=event_id,
        type="github.pr.comment",
        source="github",
        repo="org/app",
        payload={},
        priority=Priority.LOW,
        created_at=START,
        status=status,
    )
    return Record(kind="event", id=event_id, state=status, doc=msgspec.to_builtins(document))


def assignment(assignment_id: str, status: AssignmentStatus, ended_at: datetime | None = None) -> Record:
    document = Assignment(
        id=assignment_id,
        event_id="evt-github-1",
        target_general="gen-pr",
        type="github.pr.comment",
        payload={},
        priority=Priority.LOW,
        created_at=START,
        status=status,
        ended_at=ended_at,
    )
    return Record(kind="task", id=assignment_id, state=status, doc=msgspec.to_builtins(document))


def run(workflow_id: str, state: str, soldier: str, agent: AgentStatus) -> Record:
    """Return a run with one Work, whose agent has a session."""
    work = WorkDefinition(name="work", tasks=(TaskDefinition(query="Do it."),))
    workflow = Workflow.copied_from(WorkflowTemplate(id="t", name="t", works=(work,)), workflow_id, START)
    workflow.works[0].agent.session = f"{soldier}/abc"
    workflow.works[0].agent.status = agent
    document = {**workflow.document(), "status": state}
    return Record(kind="workflow", id=workflow_id, state=state, doc=document)


@asynccontextmanager
async def opened(backend: BackendUnderTest, directory: Path) -> AsyncIterator[ChamberlainScene]:
    async with backend.open(TOPOLOGY, EVERY_KIND) as bus:
        yield ChamberlainScene(bus, backend.operations(bus), directory)
