"""The status of the court: its health, what waits and why, and what needs a person.

Counts stop at COUNT_MAX, so reading the status has a bounded cost.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from kingdom.bus.operations import Operations, StreamStats
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery, read_document, read_documents
from kingdom.court.chamberlain.budget import TokenStatus, status_of
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.documents import AssignmentStatus, Priority
from kingdom.court.followups.records import FOLLOWUPS, Followup, FollowupState
from kingdom.court.followups.summary import FollowupSummary, summarize_followup
from kingdom.court.health_summary import HealthSummary, summarize_health
from kingdom.court.heartbeat import CURRENT_HEARTBEATS, last_heartbeats
from kingdom.court.king.admission import current_rule, current_slot_limit, missing_general_line
from kingdom.court.king.admission_rules import AdmissionRule, SlotLimit
from kingdom.court.king.assignments import load_current_quota, with_current_limit
from kingdom.court.king.context import KingContext
from kingdom.court.king.waiting_queue import (
    ANSWER,
    HELD,
    READY,
    WAITING,
    WAITING_ENTRIES,
    WaitingEntry,
    line_of,
    read_entry,
)
from kingdom.court.package_files import BrokenPackage
from kingdom.court.questions import QUESTIONS, QuestionStatus
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS, Quota, full_reason, read_quota
from kingdom.court.records import ASSIGNMENTS, CURRENT
from kingdom.court.streams import EVENT_STREAM
from kingdom.text import format_age
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import HOSTS, WORKFLOWS

COUNT_MAX = 1000
OPEN_QUESTIONS = RecordQuery(kind=QUESTIONS.name, state=QuestionStatus.OPEN, limit=COUNT_MAX)
_QUOTAS = RecordQuery(kind=QUOTAS.name, limit=COUNT_MAX)
_HOSTS = RecordQuery(kind=HOSTS.name, limit=COUNT_MAX)
_WAITING = RecordQuery(kind=WAITING_ENTRIES.name, state=WAITING, limit=COUNT_MAX)
# The pull requests whose followup asks a person come first.
_FOLLOWED = tuple(
    RecordQuery(kind=FOLLOWUPS.name, state=state, limit=COUNT_MAX)
    for state in (FollowupState.WAITING, FollowupState.OPEN)
)
_OPEN = (AssignmentStatus.PENDING, AssignmentStatus.IN_PROGRESS, AssignmentStatus.NEEDS_HUMAN)


class RoleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A role and the time since its last heartbeat, or None if it does not run."""

    role: str
    silent_seconds: float | None
    is_well: bool


class MoneySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The daily budget in dollars. `status` depends on what is spent, not on what is reserved."""

    spent: float
    set_aside: float
    limit: float
    status: TokenStatus


class SlotUse(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots of a scope are in use."""

    scope: str
    held: int
    limit: int


class WaitingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The events that wait for a General, by priority and by their first reason to wait."""

    count: int = 0
    by_priority: dict[str, int] = {}
    by_reason: dict[str, int] = {}
    # The Generals that events wait for, but that have no package.
    absent: tuple[str, ...] = ()


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that runs agents."""

    name: str
    status: HostStatus
    slots: int
    busy: int
    drained: bool = False


class ParkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits until a usage limit of its model provider ends, then continues by itself."""

    workflow: str
    until: datetime
    reason: str


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that needs a person, and the command to start with."""

    what: str
    command: str


class CourtStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status at one moment. Counts stop at COUNT_MAX."""

    at: datetime
    health: HealthSummary
    roles: tuple[RoleSummary, ...]
    money: MoneySummary
    slots: tuple[SlotUse, ...]
    undecided: int
    waiting: WaitingSummary
    assignments: dict[str, int]
    open_asks: int
    dead_letters: dict[str, int]
    paused: dict[str, str]
    hosts: tuple[HostSummary, ...]
    parked: tuple[ParkedRun, ...] = ()
    followups: tuple[FollowupSummary, ...] = ()
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """What reading the status needs besides the bus. `store` is the directory of a file store.

    `running` are roles whose process is known to run, even if it has not written a heartbeat yet.
    """

    king: KingContext
    settings: ChamberlainSettings
    roles: Sequence[str]
    store: Path | None = None
    running: frozenset[str] = frozenset()
    broken: Sequence[BrokenPackage] = field(default_factory=tuple)


async def read_status(bus: Bus, operations: Operations, sources: StatusSources) -> CourtStatus:
    """Return the current status."""
    streams = await operations.stats()
    async with bus.transaction() as transaction:
        now = sources.king.clock()
        await transaction.find_ahead(status_queries(now))
        return await build_status(transaction, streams, sources, now)


async def build_status(
    transaction: Transaction, streams: Sequence[StreamStats], sources: StatusSources, now: datetime
) -> CourtStatus:
    """Return the status. The transaction may already have run the `status_queries`."""
    king = sources.king
    await transaction.read_ahead([(HEALTH.name, CURRENT), (QUOTAS.name, MONEY), (QUOTAS.name, SOLDIERS)])
    _, money = await load_current_quota(transaction, MONEY, now, king)
    status = CourtStatus(
        at=now,
        health=await summarize_health(transaction, now, king),
        roles=_roles(await last_heartbeats(transaction, sources.store), now, sources),
        money=summarize_money(money, sources.settings),
        slots=await _slots(transaction, now, king),
        undecided=sum(row.pending for row in streams if row.stream == EVENT_STREAM.name),
        waiting=await _waiting(transaction, now, king),
        assignments={str(each): len(await transaction.find(_assignments(each))) for each in _OPEN},
        open_asks=len(await transaction.find(OPEN_QUESTIONS)),
        dead_letters={row.stream: row.dead for row in streams if row.dead},
        paused={row.stream: row.paused for row in streams if row.paused},
        hosts=tuple(map(_host, await transaction.find(_HOSTS))),
        parked=await _parked(transaction, now),
        followups=await _followups(transaction, king),
    )
    return msgspec.structs.replace(status, troubles=tuple(_find_troubles(status, sources)))


def status_queries(now: datetime) -> list[RecordQuery]:
    """Return the queries whose results a status needs."""
    fixed = (_QUOTAS, _WAITING, _HOSTS, OPEN_QUESTIONS, CURRENT_HEARTBEATS, *_FOLLOWED)
    return [*fixed, _parked_runs(now), *map(_assignments, _OPEN)]


def _roles(heartbeats: Mapping[str, datetime], now: datetime, sources: StatusSources) -> tuple[RoleSummary, ...]:
    threshold = timedelta(seconds=sources.settings.heartbeat.threshold_seconds)
    found = []
    for role in sources.roles:
        silent = now - heartbeats[role] if role in heartbeats else None
        # Clocks of two machines may differ slightly.
        seconds = max(silent.total_seconds(), 0.0) if silent is not None else None
        is_well = silent <= threshold if silent is not None else role in sources.running
        found.append(RoleSummary(role=role, silent_seconds=seconds, is_well=is_well))
    return tuple(found)


def summarize_money(money: Quota, settings: ChamberlainSettings) -> MoneySummary:
    """Return the daily budget as people see it."""
    status = status_of(money.spent, money.limit, settings.budget)
    return MoneySummary(spent=float(money.spent), set_aside=float(money.held), limit=float(money.limit), status=status)


async def _slots(transaction: Transaction, now: datetime, king: KingContext) -> tuple[SlotUse, ...]:
    """Return the use of slots in total, and in each scope where some are in use."""
    _, soldiers = await load_current_quota(transaction, SOLDIERS, now, king)
    found = await transaction.find(_QUOTAS)
    others = [with_current_limit(read_quota(each.doc), now, king) for each in found if each.id not in (SOLDIERS, MONEY)]
    limit = await current_slot_limit(transaction, king)
    in_total = SlotUse(scope=soldiers.scope, held=int(soldiers.held), limit=limit.slots)
    shown = (quota for quota in others if quota.holders)
    return in_total, *(SlotUse(scope=each.scope, held=int(each.held), limit=int(each.limit)) for each in shown)


async def _waiting(transaction: Transaction, now: datetime, king: KingContext) -> WaitingSummary:
    records = await transaction.find(_WAITING)
    if not records:
        return WaitingSummary()
    rule = await current_rule(transaction, now, king)
    slots = await current_slot_limit(transaction, king), (await load_current_quota(transaction, SOLDIERS, now, king))[1]
    entries = [(record, read_entry(record)) for record in records]
    priorities = Counter(entry.priority for _, entry in entries)
    reasons = Counter(_reason(record, entry, rule, slots, now) for record, entry in entries)
    return WaitingSummary(
        count=len(entries),
        by_priority={str(each): priorities[each] for each in Priority if priorities[each]},
        by_reason=dict(reasons.most_common()),
        absent=tuple(sorted({entry.general for record, entry in entries if _is_absent(record, entry)})),
    )


def _reason(
    record: Record, entry: WaitingEntry, rule: AdmissionRule, slots: tuple[SlotLimit, Quota], now: datetime
) -> str:
    """Return the first reason why an entry waits."""
    line = line_of(record)
    if line == HELD:
        return "held back in case a newer event follows"
    if line == ANSWER:
        return "an answer that waits for budget"
    if line not in (READY, None):
        return entry.reason or line
    if not rule.admits(entry.rank, now):
        return rule.reason
    limit, soldiers = slots
    if limit.allows(soldiers):
        return "the next round of the King"
    return limit.text if soldiers.fits() else full_reason(SOLDIERS)


def _is_absent(record: Record, entry: WaitingEntry) -> bool:
    return line_of(record) == missing_general_line(entry.general)


def _assignments(status: AssignmentStatus) -> RecordQuery:
    return RecordQuery(kind=ASSIGNMENTS.name, state=status, limit=COUNT_MAX)


def _parked_runs(now: datetime) -> RecordQuery:
    state, until = WorkflowStatus.AWAITING, now + timedelta(days=365)
    return RecordQuery(kind=WORKFLOWS.name, state=state, due_by=until, limit=COUNT_MAX)


async def _parked(transaction: Transaction, now: datetime) -> tuple[ParkedRun, ...]:
    """Return the parked runs. The run that continues first is at the front."""
    found = read_documents(await transaction.find(_parked_runs(now)), Workflow)
    parked = [
        ParkedRun(workflow=each.id, until=each.parked_until, reason=each.reason) for each in found if each.parked_until
    ]
    return tuple(sorted(parked, key=lambda each: each.until))


async def _followups(transaction: Transaction, king: KingContext) -> tuple[FollowupSummary, ...]:
    records = [record for query in _FOLLOWED for record in await transaction.find(query)]
    return tuple(summarize_followup(each, king.follow_policy) for each in read_documents(records, Followup))


def _host(record: Record) -> HostSummary:
    host = read_document(record.doc, Host)
    return HostSummary(name=host.id, status=host.status, slots=host.slots, busy=host.busy, drained=host.drained)


def _find_troubles(status: CourtStatus, sources: StatusSources) -> Iterator[Trouble]:
    """Yield the problems that need a person, the worst first."""
    yield from _find_silent_roles(status)
    if status.health.stops_work:
        what = f"health is {status.health.level} ({status.health.reason}): {status.health.effect}"
        yield Trouble(what=what, command="kingdom doctor")
    if status.money.spent >= status.money.limit:
        what = f"the daily budget of ${status.money.limit:.2f} is spent: raise king.daily_usd, or wait for the next day"
        yield Trouble(what=what, command="kingdom config check")
    if status.open_asks:
        yield Trouble(what=f"{count_noun(status.open_asks, 'question')} for a person", command="kingdom inbox")
    for stream, count in status.dead_letters.items():
        what = f"{count_noun(count, 'dead letter')} in {stream}"
        yield Trouble(what=what, command=f"kingdom bus dead list --stream {stream}")
    for stream, reason in status.paused.items():
        yield Trouble(what=f"the stream {stream} is paused: {reason}", command=f"kingdom bus resume {stream}")
    for general in status.waiting.absent:
        yield Trouble(what=f"events wait for {general}, which has no package", command="kingdom general list")
    for broken in sources.broken:
        yield Trouble(what=f"the General {broken.name} is broken: {broken.reason}", command="kingdom general validate")
    soldiers_run = any(each.is_well for each in status.roles if each.role == SOLDIERS)
    if soldiers_run and not _is_a_host_up(status):
        yield Trouble(what="no machine runs agents", command="kingdom host list")
    elif _is_a_host_up(status) and all(host.drained for host in status.hosts if host.status is HostStatus.UP):
        yield Trouble(what="every machine that runs agents is drained", command="kingdom host undrain NAME")


def _find_silent_roles(status: CourtStatus) -> Iterator[Trouble]:
    unwell = [each for each in status.roles if not each.is_well]
    missing = [each.role for each in unwell if each.silent_seconds is None]
    if missing and len(missing) == len(status.roles):
        what = "no role of the court runs, only an engine or a host" if _is_a_host_up(status) else "nothing runs"
        yield Trouble(what=what, command="kingdom up")
    elif len(missing) > 1:
        yield Trouble(what=f"{', '.join(missing[:-1])} and {missing[-1]} do not run", command="kingdom up")
    elif missing:
        yield Trouble(what=f"{missing[0]} does not run", command=f"kingdom role {missing[0]}")
    for each in unwell:
        if each.silent_seconds is not None:
            what = f"{each.role} has had no heartbeat for {format_age(each.silent_seconds)}"
            yield Trouble(what=what, command=f"kingdom role {each.role}")


def _is_a_host_up(status: CourtStatus) -> bool:
    return any(host.status is HostStatus.UP for host in status.hosts)


def count_noun(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def count_text(count: int) -> str:
    """Return a count as text, with a plus sign if counting stopped."""
    return f"{count}+" if count >= COUNT_MAX else str(count)
