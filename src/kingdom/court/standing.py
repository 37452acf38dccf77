"""How the court stands: what is well, what waits for what, and what needs a person.

Nothing is counted beyond COUNT_MAX, so that a look costs the same however much there is.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery, read_document, read_documents
from kingdom.court.asks import ASKS, AskStatus
from kingdom.court.chamberlain.budget import TokenStatus, status_of
from kingdom.court.chamberlain.health import CPU, DISK, MEMORY, Level, thresholds_named
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.documents import AssignmentStatus, Priority
from kingdom.court.heartbeat import last_signs
from kingdom.court.king.admission import absent_owner, gate_now
from kingdom.court.king.assigning import as_of, quota_now
from kingdom.court.king.gates import Gate, health_gate
from kingdom.court.king.terms import Terms
from kingdom.court.king.waiting import ANSWER, HELD, PLACES, READY, WAITING, WaitingPlace, read_place
from kingdom.court.package_files import Broken
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS, Quota, read_quota
from kingdom.court.records import ASSIGNMENTS, CURRENT
from kingdom.court.streams import EVENT_STREAM
from kingdom.workflow.model.host import Host, HostStatus
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import HOSTS, WORKFLOWS

COUNT_MAX = 1000
UNKNOWN = "unknown"
_OPEN = (AssignmentStatus.PENDING, AssignmentStatus.IN_PROGRESS, AssignmentStatus.NEEDS_HUMAN)
_TROUBLE = frozenset({Level.ORANGE, Level.RED})


class HealthNow(msgspec.Struct, frozen=True, kw_only=True):
    """The health as it counts now, why it is so, and how old the reading is."""

    level: str
    reason: str
    age_seconds: float | None = None

    @property
    def by_setting(self) -> str:
        """Return in words which setting the level goes by, nothing where its reason is no resource."""
        resource = self.reason.partition(":")[0]
        setting = f"chamberlain.health.{'disk_' if resource == DISK else ''}{thresholds_named(self.level)}"
        return f", by {setting} of kingdom.yaml" if resource in (CPU, MEMORY, DISK) else ""


class RoleNow(msgspec.Struct, frozen=True, kw_only=True):
    """A role: how long ago its last sign of life was, nothing where it does not run."""

    role: str
    silent_seconds: float | None
    is_well: bool


class MoneyNow(msgspec.Struct, frozen=True, kw_only=True):
    """The money of the day in dollars; `status` goes by what is spent, not by what is only set aside."""

    spent: float
    set_aside: float
    limit: float
    status: TokenStatus


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots of a scope are taken."""

    scope: str
    held: int
    limit: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The events that wait for a General, by priority and by what each waits for first."""

    count: int = 0
    by_priority: dict[str, int] = {}
    by_reason: dict[str, int] = {}
    # Generals that are waited for and are not there.
    absent: tuple[str, ...] = ()


class HostNow(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that runs agents."""

    name: str
    status: HostStatus
    slots: int
    busy: int


class ParkedNow(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for the limit of its vendor to end, and goes on by itself then."""

    workflow: str
    until: datetime
    reason: str


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that does not go on without a person, and the command to begin with."""

    what: str
    command: str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """All of it at one moment; counts stop at COUNT_MAX."""

    at: datetime
    health: HealthNow
    roles: tuple[RoleNow, ...]
    money: MoneyNow
    slots: tuple[Slots, ...]
    undecided: int
    waiting: Waiting
    assignments: dict[str, int]
    open_asks: int
    dead_letters: dict[str, int]
    paused: dict[str, str]
    hosts: tuple[HostNow, ...]
    parked: tuple[ParkedNow, ...] = ()
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """What a look at the court needs besides the store; `store` is the directory where that is one of files.

    `running` are roles of which somebody knows that their process runs, though they may not have given a sign yet.
    """

    terms: Terms
    settings: ChamberlainSettings
    roles: Sequence[str]
    store: Path | None = None
    running: frozenset[str] = frozenset()
    broken: Sequence[Broken] = field(default_factory=tuple)


async def look(bus: Bus, operations: Operations, lookout: Lookout) -> Standing:
    """Return how the court stands now."""
    now, terms = lookout.terms.clock(), lookout.terms
    streams = await operations.stats()
    async with bus.transaction() as transaction:
        _, money = await quota_now(transaction, MONEY, now, terms)
        standing = Standing(
            at=now,
            health=await _health(transaction, now, terms),
            roles=_roles(await last_signs(transaction, lookout.store), now, lookout),
            money=_money(money, lookout.settings),
            slots=await _slots(transaction, now, terms),
            undecided=sum(row.pending for row in streams if row.stream == EVENT_STREAM.name),
            waiting=await _waiting(transaction, now, terms),
            assignments={str(each): await _count(transaction, ASSIGNMENTS.name, each) for each in _OPEN},
            open_asks=await _count(transaction, ASKS.name, AskStatus.OPEN),
            dead_letters={row.stream: row.dead for row in streams if row.dead},
            paused={row.stream: row.paused for row in streams if row.paused},
            hosts=tuple(map(_host, await transaction.find(RecordQuery(kind=HOSTS.name, limit=COUNT_MAX)))),
            parked=await _parked(transaction, now),
        )
    return msgspec.structs.replace(standing, troubles=tuple(_troubles(standing, lookout)))


async def _health(transaction: Transaction, now: datetime, terms: Terms) -> HealthNow:
    record = await transaction.get(HEALTH.name, CURRENT)
    if record is None:
        return HealthNow(level=UNKNOWN, reason="nobody has measured it yet")
    gate = health_gate(record.doc, now, terms.settings)
    try:
        at = msgspec.convert(record.doc.get("at"), datetime)
        age = (now - at).total_seconds()
    except (msgspec.ValidationError, TypeError):
        return HealthNow(level=Level.ORANGE, reason=gate.reason)
    if age > terms.settings.health_stale_seconds:
        return HealthNow(level=Level.ORANGE, reason=gate.reason, age_seconds=age)
    return HealthNow(level=str(record.doc["level"]), reason=str(record.doc.get("reason", "")), age_seconds=age)


def _roles(signs: Mapping[str, datetime], now: datetime, lookout: Lookout) -> tuple[RoleNow, ...]:
    threshold = timedelta(seconds=lookout.settings.heartbeat.threshold_seconds)
    found = []
    for role in lookout.roles:
        silent = now - signs[role] if role in signs else None
        # Clocks of two machines may differ by a little.
        seconds = max(silent.total_seconds(), 0.0) if silent is not None else None
        is_well = silent <= threshold if silent is not None else role in lookout.running
        found.append(RoleNow(role=role, silent_seconds=seconds, is_well=is_well))
    return tuple(found)


def _money(money: Quota, settings: ChamberlainSettings) -> MoneyNow:
    status = status_of(money.spent, money.limit, settings.budget)
    return MoneyNow(spent=float(money.spent), set_aside=float(money.held), limit=float(money.limit), status=status)


async def _slots(transaction: Transaction, now: datetime, terms: Terms) -> tuple[Slots, ...]:
    """Return the slots of all, and those of which somebody has some."""
    _, soldiers = await quota_now(transaction, SOLDIERS, now, terms)
    found = await transaction.find(RecordQuery(kind=QUOTAS.name, limit=COUNT_MAX))
    others = [as_of(read_quota(record.doc), now, terms) for record in found if record.id not in (SOLDIERS, MONEY)]
    shown = [soldiers, *(quota for quota in others if quota.holders)]
    return tuple(Slots(scope=each.scope, held=int(each.held), limit=int(each.limit)) for each in shown)


async def _waiting(transaction: Transaction, now: datetime, terms: Terms) -> Waiting:
    records = await transaction.find(RecordQuery(kind=PLACES.name, state=WAITING, limit=COUNT_MAX))
    if not records:
        return Waiting()
    gate = await gate_now(transaction, now, terms)
    _, soldiers = await quota_now(transaction, SOLDIERS, now, terms)
    places = [(record, read_place(record)) for record in records]
    priorities = Counter(place.priority for _, place in places)
    reasons = Counter(_reason(record, place, gate, soldiers, now) for record, place in places)
    return Waiting(
        count=len(places),
        by_priority={str(each): priorities[each] for each in Priority if priorities[each]},
        by_reason=dict(reasons.most_common()),
        absent=tuple(sorted({place.general for record, place in places if _is_absent(record, place)})),
    )


def _reason(record: Record, place: WaitingPlace, gate: Gate, soldiers: Quota, now: datetime) -> str:
    """Return what a place waits for first."""
    match record.owner:
        case str(owner) if owner == HELD:
            return "held back for a newer event"
        case str(owner) if owner == ANSWER:
            return "an answer that waits for money"
        case str(owner) if owner != READY:
            return place.reason or owner
    if not gate.admits(place.rank, now):
        return f"the gate of {gate.name}: {gate.reason}"
    return "the next look of the King" if soldiers.fits() else f"{SOLDIERS} is full"


def _is_absent(record: Record, place: WaitingPlace) -> bool:
    return record.owner == absent_owner(place.general)


async def _count(transaction: Transaction, kind: str, state: str) -> int:
    return len(await transaction.find(RecordQuery(kind=kind, state=state, limit=COUNT_MAX)))


async def _parked(transaction: Transaction, now: datetime) -> tuple[ParkedNow, ...]:
    """Return the runs that go on by themselves at some time, the first of them first."""
    query = RecordQuery(
        kind=WORKFLOWS.name, state=WorkflowStatus.AWAITING, due_by=now + timedelta(days=365), limit=COUNT_MAX
    )
    found = read_documents(await transaction.find(query), Workflow)
    parked = [
        ParkedNow(workflow=workflow.id, until=workflow.parked_until, reason=workflow.reason)
        for workflow in found
        if workflow.parked_until
    ]
    return tuple(sorted(parked, key=lambda each: each.until))


def _host(record: Record) -> HostNow:
    host = read_document(record.doc, Host)
    return HostNow(name=host.id, status=host.status, slots=host.slots, busy=host.busy)


def _troubles(standing: Standing, lookout: Lookout) -> Iterator[Trouble]:
    """Yield what needs a person, the worst first."""
    yield from _silent(standing)
    if standing.health.level in _TROUBLE:
        why = f"{standing.health.reason}{standing.health.by_setting}"
        what = f"nothing new begins, the health is {standing.health.level}: {why}"
        yield Trouble(what=what, command="kingdom doctor")
    if standing.money.spent >= standing.money.limit:
        what = (
            f"the {standing.money.limit:.2f} dollars of the day are spent: raise king.daily_usd, or wait for the next"
        )
        yield Trouble(what=what, command="kingdom config check")
    if standing.open_asks:
        yield Trouble(what=f"{many(standing.open_asks, 'question')} for a person", command="kingdom inbox")
    for stream, count in standing.dead_letters.items():
        what = f"{many(count, 'dead letter')} in {stream}"
        yield Trouble(what=what, command=f"kingdom bus dead list --stream {stream}")
    for stream, reason in standing.paused.items():
        yield Trouble(what=f"{stream} is paused: {reason}", command=f"kingdom bus resume {stream}")
    for general in standing.waiting.absent:
        yield Trouble(what=f"events wait for {general}, who is not there", command="kingdom general list")
    for broken in lookout.broken:
        yield Trouble(what=f"{broken.name} is broken: {broken.reason}", command="kingdom general validate")
    soldiers_run = any(each.is_well for each in standing.roles if each.role == SOLDIERS)
    if soldiers_run and not _is_a_host_up(standing):
        yield Trouble(what="no machine runs agents", command="kingdom host list")


def _silent(standing: Standing) -> Iterator[Trouble]:
    unwell = [each for each in standing.roles if not each.is_well]
    missing = [each.role for each in unwell if each.silent_seconds is None]
    if missing and len(missing) == len(standing.roles):
        what = "no role of the court runs, only an engine or a host" if _is_a_host_up(standing) else "nothing runs"
        yield Trouble(what=what, command="kingdom up")
    elif len(missing) > 1:
        yield Trouble(what=f"{_listed(missing)} do not run", command="kingdom up")
    elif missing:
        yield Trouble(what=f"{missing[0]} does not run", command=f"kingdom role {missing[0]}")
    for each in unwell:
        if each.silent_seconds is not None:
            what = f"{each.role} gave no sign of life for {each.silent_seconds:.0f} s"
            yield Trouble(what=what, command=f"kingdom role {each.role}")


def _is_a_host_up(standing: Standing) -> bool:
    return any(host.status is HostStatus.UP for host in standing.hosts)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def many(count: int, noun: str) -> str:
    """Return a count with what is counted."""
    return f"{counted(count)} {noun}{'' if count == 1 else 's'}"


def counted(count: int) -> str:
    """Return a count as text, with a sign where counting stopped."""
    return f"{count}+" if count >= COUNT_MAX else str(count)
