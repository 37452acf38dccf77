"""Kings running on a real bus with a clock that the test moves; the test acts for the Generals."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus import Bus, Dispatcher, LogCursor, LogEntry, Operations, Record, RecordQuery, Worker
from kingdom.bus.effects.ledger import EFFECTS
from kingdom.bus.operations import DeadFilter
from kingdom.bus.sequence import SEQUENCES
from kingdom.court import records
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.documents import Assignment, AssignmentStatus, ExternalEvent
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.records import KINDS
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.timers import run_timers_once
from kingdom.court.king.waiting_queue import WAITING_ENTRIES, line_of
from kingdom.court.package import Package
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.questions import HumanQuestion, load_question, save_question
from kingdom.court.quota import QUOTAS, Quota, read_quota
from kingdom.court.records import CURRENT, load, receive_event, save
from kingdom.court.streams import TOPOLOGY, slot_release_due
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from kingdom.workflow.records import run_transaction
from tests.contract.backends import BackendUnderTest
from tests.patience import PATIENCE_SECONDS
from tests.unit.court.king.making import NOON

EVERY_KIND = (EFFECTS, SEQUENCES, *WORKFLOW_KINDS, *records.KINDS, *KINDS, HEALTH, PETITIONS)
SEOUL = ZoneInfo("Asia/Seoul")
_POLL = timedelta(milliseconds=20)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = NOON + timedelta(minutes=1)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **by: float) -> None:
        self.now += timedelta(**by)


class Scene:
    """A store with Kings that work on it."""

    def __init__(self, backend: BackendUnderTest, bus: Bus, *packages: Package, settings: KingSettings) -> None:
        self.bus = bus
        self.packages = list(packages)
        self.clock = Clock()
        self.operations: Operations = backend.operations(bus)
        self.context = KingContext(settings=settings, packages=lambda: self.packages, zone=SEOUL, clock=self.clock)
        self._answers = itertools.count(1)

    def dispatcher(self) -> Dispatcher:
        dispatcher = Dispatcher()
        register(dispatcher, self.context)
        return dispatcher

    async def send(self, *events: ExternalEvent) -> None:
        """Store events one after another, and wait until the King has handled them."""
        for event in events:
            async with self.bus.transaction() as transaction:
                await receive_event(transaction, event, "sentinel")
            await self.settle()

    async def tick(self, bus: Bus | None = None) -> None:
        await run_timers_once(bus or self.bus, self.context)
        await self.settle()

    async def store_assignment(
        self, assignment_id: str, status: AssignmentStatus, *, reason: str = "", cost_usd: float = 0.0
    ) -> None:
        """Store an assignment with the status that its General gives it."""
        async with self.bus.transaction() as transaction:
            record, assignment = await load(transaction, Assignment, assignment_id)
            rested = msgspec.structs.replace(assignment, status=status, reason=reason, cost_usd=cost_usd)
            await save(transaction, rested, record)
            await transaction.publish(slot_release_due(assignment_id))
        await self.settle()

    async def complete(self, assignment_id: str, **more: Any) -> None:
        await self.store_assignment(assignment_id, AssignmentStatus.COMPLETED, **more)

    async def ask_person(self, assignment_id: str, **more: Any) -> None:
        """Let an assignment ask a person."""
        assignment = await self.assignment(assignment_id)
        ask = HumanQuestion(
            id=assignment.root_id,
            assignment_id=assignment_id,
            general=assignment.target_general,
            workflow_id=f"wf-{assignment.root_id}",
            text="May I?",
            asked_at=self.clock(),
            due_at=self.clock() + timedelta(days=7),
            **more,
        )
        async with self.bus.transaction() as transaction:
            known = await load_question(transaction, ask.id)
            await save_question(transaction, ask, known[0] if known else None)
        await self.store_assignment(assignment_id, AssignmentStatus.NEEDS_HUMAN)

    async def set_health(self, level: str, reason: str = "", **more: Any) -> None:
        """Store a health reading as the Chamberlain does."""

        async def act(transaction: Any) -> None:
            known = await transaction.get(HEALTH.name, CURRENT)
            doc = {"level": level, "reason": reason, "at": self.clock().isoformat(), **more}
            version = known.version if known else 0
            await transaction.put(Record(kind=HEALTH.name, id=CURRENT, state=CURRENT, version=version, doc=doc))

        await run_transaction(self.bus, act)

    async def event(self, event_id: str) -> ExternalEvent:
        async with self.bus.transaction() as transaction:
            return (await load(transaction, ExternalEvent, event_id))[1]

    async def assignment(self, assignment_id: str) -> Assignment:
        async with self.bus.transaction() as transaction:
            return (await load(transaction, Assignment, assignment_id))[1]

    async def assignment_of(self, event_id: str) -> str:
        """Return the one assignment that an event became."""
        (route,) = (await self.event(event_id)).routes
        return route.assignment_id

    async def assigned(self) -> list[Assignment]:
        return [msgspec.convert(record.doc, Assignment) for record in await self.find(records.ASSIGNMENTS.name)]

    async def messages(self) -> list[str]:
        return [f"{record.doc['type']}: {record.doc['content']}" for record in await self.find(records.MESSAGES.name)]

    async def waiting_lines(self) -> dict[str, str]:
        """Return the line in which each event waits."""
        found = await self.find(WAITING_ENTRIES.name)
        return {record.doc["event_id"]: line for record in found if (line := line_of(record))}

    async def quota(self, scope: str) -> Quota:
        async with self.bus.transaction() as transaction:
            record = await transaction.get(QUOTAS.name, scope)
        assert record
        return read_quota(record.doc)

    async def find(self, kind: str) -> list[Record]:
        async with self.bus.transaction() as transaction:
            return await transaction.find(RecordQuery(kind=kind, limit=1000))

    async def log(self, *types: str) -> list[LogEntry]:
        entries = [logged.entry for logged in await self.operations.read_log(LogCursor(), 5000)]
        return [entry for entry in entries if not types or entry.type in types]

    async def settle(self) -> None:
        """Wait until the King has handled all his notices."""
        await self.until(self._is_idle)

    async def until(self, ready: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await ready():
            assert time.monotonic() < deadline, "the condition did not hold in time"
            await asyncio.sleep(0.01)

    async def _is_idle(self) -> bool:
        stats = [each for each in await self.operations.stats() if each.stream in STREAMS]
        assert not any(each.dead for each in stats), await self.dead()
        return not any(each.pending or each.processing for each in stats)

    async def dead(self) -> list[str]:
        return [str(letter.error_message) for letter in await self.operations.dead_letters(DeadFilter(), 10)]


@asynccontextmanager
async def opened(
    backend: BackendUnderTest, *packages: Package, settings: KingSettings | None = None, kings: int = 1
) -> AsyncIterator[Scene]:
    """Open a store with this many Kings running, each on its own bus."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(backend.open(TOPOLOGY, EVERY_KIND))
        scene = Scene(backend, bus, *packages, settings=settings or KingSettings())
        for _ in range(kings):
            await stack.enter_async_context(another_king(backend, scene))
        yield scene


@asynccontextmanager
async def another_king(
    backend: BackendUnderTest, scene: Scene, *, wrap: Callable[[Bus], Bus] = lambda bus: bus
) -> AsyncIterator[None]:
    """Run one more King, which handles one event at a time."""
    async with (
        backend.open(TOPOLOGY, EVERY_KIND) as bus,
        at_work(wrap(bus), scene.dispatcher(), *STREAMS, concurrency=1),
    ):
        yield


@asynccontextmanager
async def at_work(bus: Bus, dispatcher: Dispatcher, *streams: str, concurrency: int = 4) -> AsyncIterator[None]:
    worker = Worker(bus, dispatcher, streams, poll=_POLL, grace=timedelta(seconds=5), concurrency=concurrency)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
