"""Schedules: each has a stored next time; a time fires once, whoever looks and however often."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec
import structlog
from cronsim import CronSim

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.sequence import SEQUENCES
from kingdom.court.documents import EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.assigning import SCHEDULE
from kingdom.court.king.terms import KING, Terms
from kingdom.court.package import Package, Schedule
from kingdom.court.records import CURRENT, SEEN_KEPT, receive
from kingdom.workflow.records import change, each

ACTIVE, STOPPED = "active", "stopped"
SCHEDULES = RecordKind(
    name="schedule",
    directories={ACTIVE: "state/king/schedules", STOPPED: "state/king/schedules-stopped"},
    final=frozenset({STOPPED}),
    retention=timedelta(days=30),
)
_SENT = "schedule-sent"
# Of the times that nobody was there for, so many fire in one look; the rest follow with the next.
_CATCH_UP_MAX = 100
_DAY = timedelta(days=1)
_log = structlog.get_logger("kingdom.court")


class Timetable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule has come."""

    name: str
    general: str
    cron: str
    time_zone: str
    next_run_at: datetime | None
    last_run_at: datetime | None = None
    stopped_at: datetime | None = None


def times(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the times of a schedule behind a moment, in UTC; one that the clocks repeat comes once."""
    for moment in CronSim(cron, after.astimezone(zone)):
        time = moment.astimezone(UTC)
        # In the repeated hour the wall clock names times that are over.
        if time > after:
            yield time


def next_time(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the next time behind a moment, if there ever is one."""
    return next(times(cron, zone, after), None)


def due_times(schedule: Schedule, zone: ZoneInfo, first: datetime, now: datetime, late: timedelta) -> list[datetime]:
    """Return which of the times from the first to now fire; those longer ago than `late` were missed."""
    if schedule.catch_up == "all":
        return [first, *islice(_until(schedule.cron, zone, first, now), _CATCH_UP_MAX - 1)]
    recent = list(_until(schedule.cron, zone, max(first, now - _DAY), now))
    latest = recent[-1] if recent else [first, *_until(schedule.cron, zone, first, now)][-1]
    return [latest] if schedule.catch_up == "once" or now - latest <= late else []


async def fire_schedules(bus: Bus, now: datetime, terms: Terms) -> list[str]:
    """Fire what is due, take in what was added or changed and stop what is gone; returns the ids of the events."""
    declared = _declared(terms)
    async with bus.transaction() as transaction:
        query = RecordQuery(kind=SCHEDULES.name, state=ACTIVE)
        known = {record.id: record async for record in each(transaction, query)}
    fired: list[str] = []
    for name, (package, schedule) in declared.items():
        if _has_to_do(known.get(name), package, schedule, now, terms):
            fired += await change(bus, partial(_advance, package=package, schedule=schedule, now=now, terms=terms))
    for name in known.keys() - declared.keys():
        await change(bus, partial(_stop, name=name, now=now))
    return fired


async def _advance(
    transaction: Transaction, *, package: Package, schedule: Schedule, now: datetime, terms: Terms
) -> list[str]:
    """Fire the times of one schedule that are due, and store its next one."""
    record = await transaction.get(SCHEDULES.name, schedule.name)
    zone = _zone(schedule, terms)
    before = _read(record, now)
    timetable = Timetable(
        name=schedule.name,
        general=package.name,
        cron=schedule.cron,
        time_zone=zone.key,
        next_run_at=next_time(schedule.cron, zone, now),
        last_run_at=before.last_run_at if before else None,
    )
    fired: list[datetime] = []
    if before and before.next_run_at and before.next_run_at <= now and _is_same(before, timetable):
        late = timedelta(seconds=terms.settings.schedule_late_seconds)
        fired = due_times(schedule, zone, before.next_run_at, now, late)
        if schedule.catch_up == "all":
            # There may be more than one look can fire.
            timetable = msgspec.structs.replace(timetable, next_run_at=next_time(schedule.cron, zone, fired[-1]))
    if fired:
        timetable = msgspec.structs.replace(timetable, last_run_at=fired[-1])
        await _remember_sent(transaction, schedule.name, fired[-1])
    await transaction.put(
        Record(
            kind=SCHEDULES.name,
            id=schedule.name,
            version=record.version if record else 0,
            state=ACTIVE,
            due_at=timetable.next_run_at,
            doc=msgspec.to_builtins(timetable),
        )
    )
    return [event_id for time in fired if (event_id := await _fire(transaction, package, schedule, time))]


async def _fire(transaction: Transaction, package: Package, schedule: Schedule, time: datetime) -> str:
    """Take in the event of one time, unless somebody has; returns its id then."""
    moment = f"{time:%Y%m%d%H%M%S}"
    if not await transaction.once(SCHEDULE, f"{schedule.name}-{moment}", SEEN_KEPT):
        return ""
    event = ExternalEvent(
        id=f"evt-{SCHEDULE}-{schedule.name}-{moment}",
        type=schedule.task_type,
        source=SCHEDULE,
        repo=schedule.repo,
        payload=dict(schedule.payload),
        priority=Priority.LOW,
        created_at=time,
        status=EventStatus.PENDING,
        routes=(Route(general=package.name, rule=SCHEDULE),),
    )
    return event.id if await receive(transaction, event, KING) else ""


async def _stop(transaction: Transaction, *, name: str, now: datetime) -> None:
    record = await transaction.get(SCHEDULES.name, name)
    if record and record.state == ACTIVE:
        document = {**record.doc, "stopped_at": msgspec.to_builtins(now)}
        await transaction.put(
            Record(kind=record.kind, id=record.id, version=record.version, state=STOPPED, doc=document)
        )


async def _remember_sent(transaction: Transaction, name: str, time: datetime) -> None:
    record = await transaction.get(SEQUENCES.name, _SENT)
    sent = {**(record.doc if record else {}), name: time.isoformat()}
    version = record.version if record else 0
    await transaction.put(Record(kind=SEQUENCES.name, id=_SENT, version=version, state=CURRENT, doc=sent))


def _declared(terms: Terms) -> dict[str, tuple[Package, Schedule]]:
    return {
        schedule.name: (package, schedule) for package in terms.packages() for schedule in package.general.schedules
    }


def _has_to_do(record: Record | None, package: Package, schedule: Schedule, now: datetime, terms: Terms) -> bool:
    known = _read(record, now)
    if known is None or (known.next_run_at and known.next_run_at <= now):
        return True
    wanted = (package.name, schedule.cron, _zone(schedule, terms).key)
    return (known.general, known.cron, known.time_zone) != wanted


def _is_same(before: Timetable, after: Timetable) -> bool:
    """Tell whether the times of a schedule are still those that its next one was reckoned from."""
    return (before.cron, before.time_zone) == (after.cron, after.time_zone)


def _read(record: Record | None, now: datetime) -> Timetable | None:
    """Return how far a schedule has come; one that was away for a day, or is spoilt, begins anew.

    For less it may have been the package that could not be read, and its times are not to be missed.
    """
    if record is None:
        return None
    try:
        timetable = msgspec.convert(record.doc, Timetable)
    except msgspec.ValidationError as error:
        _log.warning("how far a schedule has come cannot be read: it begins anew", schedule=record.id, error=str(error))
        return None
    return timetable if timetable.stopped_at is None or now - timetable.stopped_at < _DAY else None


def _zone(schedule: Schedule, terms: Terms) -> ZoneInfo:
    return ZoneInfo(schedule.time_zone) if schedule.time_zone else terms.zone


def _until(cron: str, zone: ZoneInfo, after: datetime, now: datetime) -> Iterator[datetime]:
    return takewhile(lambda time: time <= now, times(cron, zone, after))
