"""A court at work: events, assignments, dead letters, Generals, costs and hosts, as the pages show them."""

import shutil
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from kingdom.bootstrap import generals_directory_of
from kingdom.bus import Bus, Operations, Record
from kingdom.bus.throughput import HandledCounts
from kingdom.clock import utc_now
from kingdom.court.chamberlain.health import HealthLevel, HealthState, MachineReading
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.costs import DAILY_COSTS, DayCosts
from kingdom.court.package_files import SHIPPED
from kingdom.court.records import CURRENT, ENDED, save
from kingdom.court.streams import EVENT_STREAM, event_received
from kingdom.realm import Realm
from kingdom.settings import Settings
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.records import HOSTS
from tests.contract.backends import BackendUnderTest

TITLE = "Prices lack their currency"
GIVEN, UNROUTED, WAITING = "evt-github-1001", "evt-web-1002", "evt-jira-1003"
ASSIGNED = "task-20261118-101"
GENERAL = "gen-pr"
_GENERALS = {"gen-pr": "1.42", "gen-jira": "0.61", "gen-test": "0.17"}
_EVENTS: tuple[tuple[str, str, EventStatus, str, str, tuple[Route, ...]], ...] = (
    (
        GIVEN,
        "github.pr.opened",
        EventStatus.DISPATCHED,
        "",
        "",
        (Route(general=GENERAL, rule="gen-pr#1", assignment_id=ASSIGNED),),
    ),
    (UNROUTED, "demo.hello", EventStatus.COMPLETED, "unrouted", "no General subscribes to it", ()),
    (WAITING, "jira.ticket.assigned", EventStatus.PENDING, "", "", ()),
    (
        "evt-github-0998",
        "github.pr.comment",
        EventStatus.FAILED,
        "failed",
        "the budget of $5.00 is used up",
        (Route(general=GENERAL, rule="gen-pr#2", assignment_id="task-20261118-099"),),
    ),
    (
        "evt-github-0997",
        "github.pr.opened",
        EventStatus.COMPLETED,
        "",
        "",
        (Route(general=GENERAL, rule="gen-pr#1", assignment_id="task-20261118-098"),),
    ),
)
_ASSIGNMENTS = (
    (ASSIGNED, AssignmentStatus.IN_PROGRESS, "", 0.84),
    ("task-20261118-100", AssignmentStatus.NEEDS_HUMAN, "asks whether prices default to EUR", 0.4),
    ("task-20261118-099", AssignmentStatus.FAILED, "the budget of $5.00 is used up", 5.0),
    ("task-20261118-098", AssignmentStatus.COMPLETED, "reviewed, one comment", 1.21),
    ("task-20261118-097", AssignmentStatus.SKIPPED, "a newer event replaced it", 0.0),
)


def generals_of(backend: BackendUnderTest, folder: Path) -> Path:
    """Return where a server on a store finds its Generals."""
    url = f"file:{backend.place}" if backend.name == "files" else backend.place
    return generals_directory_of(Settings(database_url=url, file=folder / "kingdom.yaml"), Realm())


def install_generals(directory: Path) -> None:
    """Copy the Generals that come with Kingdom, and one that is broken."""
    shutil.copytree(SHIPPED, directory, dirs_exist_ok=True)
    (directory / "gen-broken").mkdir()
    (directory / "gen-broken" / "general.yaml").write_text("name: gen-broken\n")


async def fill_court(bus: Bus, operations: Operations, *, title: str = TITLE) -> UUID:
    """Store the court, with `title` as a text of strangers. Return the id of the event of a dead letter."""
    now = utc_now()
    async with bus.transaction() as transaction:
        for number, (event_id, kind, status, outcome, reason, routes) in enumerate(_EVENTS):
            event = ExternalEvent(
                id=event_id,
                type=kind,
                source=event_id.split("-")[1],
                repo="acme/shop",
                payload={"title": title, "body": title, "number": 12},
                priority=Priority.NORMAL,
                created_at=now - timedelta(minutes=3 + 17 * number),
                status=status,
                outcome=outcome,
                reason=reason,
                routes=routes,
            )
            await save(transaction, event)
        for number, (task, state, why, cost) in enumerate(_ASSIGNMENTS):
            at = now - timedelta(minutes=3 + 17 * number)
            more: dict[str, Any] = {"workflow_id": f"wf-{task}", "started_at": at, "retries": 1}
            assignment = Assignment(
                id=task,
                event_id=GIVEN,
                target_general=GENERAL,
                type="github.pr.opened",
                payload={"title": title, "number": 12},
                priority=Priority.NORMAL,
                created_at=at,
                status=state,
                repo="acme/shop",
                reason=why,
                budget_usd=5.0,
                cost_usd=cost,
                **more,
            )
            await save(transaction, assignment)
        for number in range(1, 26):
            day = (now - timedelta(days=number)).date()
            if day.weekday() < 5:
                await transaction.put(_costs(day, number))
        for host in _hosts():
            await transaction.put(Record(kind=HOSTS.name, id=host.id, state=host.status, doc=msgspec.to_builtins(host)))
        await transaction.put(_health(now))
    await _fill_throughput(bus)
    return await add_dead_letter(bus, operations)


async def _fill_throughput(bus: Bus) -> None:
    """Store that a stream handles two events a minute, also in the next ten minutes, so that a test may be slow."""
    now = utc_now()
    moments = [now - timedelta(minutes=ago) for ago in range(-10, 61)]
    clock = iter(moments)
    handled = HandledCounts(clock=lambda: next(clock))
    for _ in moments:
        handled.add(EVENT_STREAM.name, 2)
    await handled.report(bus)


async def add_dead_letter(bus: Bus, operations: Operations, event: str = "evt-that-is-gone") -> UUID:
    """Store a dead letter, and return the id of its event."""
    envelope = event_received(event)
    await bus.publish(envelope)
    await operations.cancel(envelope.event_id, EVENT_STREAM.name, actor="tester")
    return envelope.event_id


def _health(now: datetime) -> Record:
    levels = {"cpu_percent": HealthLevel.YELLOW, "memory_percent": HealthLevel.GREEN}
    reading = MachineReading(at=now, metrics={"cpu_percent": 71.0, "memory_percent": 38.0}, levels=levels)
    health = HealthState(level=HealthLevel.YELLOW, reason="cpu_percent: 71", at=now, machines={"anna-desk": reading})
    return Record(kind=HEALTH.name, id=CURRENT, state=CURRENT, doc=msgspec.to_builtins(health))


def _costs(day: Any, number: int) -> Record:
    costs = DayCosts(day=day, completed={"gen-pr": 3, "gen-jira": 1}, failed={"gen-pr": int(number % 3 == 0)})
    for general, usd in _GENERALS.items():
        amount = Decimal(usd) * (1 + number % 4)
        costs.add(general, "acme/shop" if number % 2 else "acme/site", {"opus": amount * 3 / 4, "haiku": amount / 4})
    return Record(kind=DAILY_COSTS.name, id=str(day), state=ENDED, doc=msgspec.to_builtins(costs))


def _hosts() -> list[Host]:
    return [
        Host(id="anna-desk", epoch=3, slots=4, busy=3, machine="anna-desk"),
        Host(id="builder-2", epoch=1, slots=8, busy=1, machine="builder-2.lan", drained=True),
        Host(id="old-box", epoch=7, slots=2, machine="old-box", status=HostStatus.LOST),
    ]
