"""Schedules: each schedule stores its next time. A time fires once, even if several Kings run."""

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
from kingdom.court.king.assignments import SCHEDULE
from kingdom.court.king.context import KING, KingContext
from kingdom.court.package import Package, Schedule
from kingdom.court.records import CURRENT, SEEN_KEPT, receive_event
from kingdom.workflow.records import each_record, run_transaction

ACTIVE, STOPPED = "active", "stopped"
SCHEDULES = RecordKind(
    name="schedule",
    directories={ACTIVE: "state/king/schedules", STOPPED: "state/king/schedules-stopped"},
    final=frozenset({STOPPED}),
    retention=timedelta(days=30),
)
# The record with the last time of each schedule.
_SENT = "schedule-sent"
# How many missed times fire in one round. The rest follow in the next round.
_CATCH_UP_MAX = 100
_DAY = timedelta(days=1)
_log = structlog.get_logger("kingdom.court")


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a schedule."""

    name: str
    general: str
    cron: str
    time_zone: str
    next_run_at: datetime | None
    last_run_at: datetime | None = None
    stopped_at: datetime | None = None


def schedule_times(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the times of a schedule after a moment, in UTC. A time repeated by daylight saving fires once."""
    for moment in CronSim(cron, after.astimezone(zone)):
        time = moment.astimezone(UTC)
        # In the repeated hour, the wall clock yields times that have passed.
        if time > after:
            yield time


def next_schedule_time(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the next time after a moment, or None."""
    return next(schedule_times(cron, zone, after), None)


def due_times(schedule: Schedule, zone: ZoneInfo, first: datetime, now: datetime, late: timedelta) -> list[datetime]:
    """Return which times from `first` to `now` fire. A time that is more than `late` ago counts as missed."""
    if schedule.catch_up == "all":
        return [first, *islice(_times_until(schedule.cron, zone, first, now), _CATCH_UP_MAX - 1)]
    recent = list(_times_until(schedule.cron, zone, max(first, now - _DAY), now))
    latest = recent[-1] if recent else [first, *_times_until(schedule.cron, zone, first, now)][-1]
    return [latest] if schedule.catch_up == "once" or now - latest <= late else []


async def fire_schedules(bus: Bus, now: datetime, context: KingContext) -> list[str]:
    """Fire due times, store declared schedules, and stop removed schedules. Return the ids of the new events."""
    declared = _declared(context)
    async with bus.transaction() as transaction:
        query = RecordQuery(kind=SCHEDULES.name, state=ACTIVE)
        known = {record.id: record async for record in each_record(transaction, query)}
    fired: list[str] = []
    for name, (package, schedule) in declared.items():
        if _needs_update(known.get(name), package, schedule, now, context):
            fired += await run_transaction(
                bus, partial(_advance, package=package, schedule=schedule, now=now, context=context)
            )
    for name in known.keys() - declared.keys():
        await run_transaction(bus, partial(_stop, name=name, now=now))
    return fired


async def _advance(
    transaction: Transaction, *, package: Package, schedule: Schedule, now: datetime, context: KingContext
) -> list[str]:
    """Fire the due times of one schedule, and store its next time."""
    record = await transaction.get(SCHEDULES.name, schedule.name)
    zone = _zone(schedule, context)
    before = _read_state(record, now)
    timetable = ScheduleState(
        name=schedule.name,
        general=package.name,
        cron=schedule.cron,
        time_zone=zone.key,
        next_run_at=next_schedule_time(schedule.cron, zone, now),
        last_run_at=before.last_run_at if before else None,
    )
    fired: list[datetime] = []
    if before and before.next_run_at and before.next_run_at <= now and _has_same_times(before, timetable):
        late = timedelta(seconds=context.settings.schedule_late_seconds)
        fired = due_times(schedule, zone, before.next_run_at, now, late)
        if schedule.catch_up == "all":
            # There may be more due times than one round fires.
            timetable = msgspec.structs.replace(
                timetable, next_run_at=next_schedule_time(schedule.cron, zone, fired[-1])
            )
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
    """Store the event of one time, and return its id. Return "" if the time has fired already."""
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
    return event.id if await receive_event(transaction, event, KING) else ""


async def _stop(transaction: Transaction, *, name: str, now: datetime) -> None:
    record = await transaction.get(SCHEDULES.name, name)
    if record and record.state == ACTIVE:
        document = {**record.doc, "stopped_at": msgspec.to_builtins(now)}
        await transaction.put(
            Record(kind=record.kind, id=record.id, version=record.version, state=STOPPED, doc=document)
        )


async def _remember_sent(transaction: Transaction, name: str, time: datetime) -> None:
    """Store the last time that a schedule fired."""
    record = await transaction.get(SEQUENCES.name, _SENT)
    sent = {**(record.doc if record else {}), name: time.isoformat()}
    version = record.version if record else 0
    await transaction.put(Record(kind=SEQUENCES.name, id=_SENT, version=version, state=CURRENT, doc=sent))


def _declared(context: KingContext) -> dict[str, tuple[Package, Schedule]]:
    return {
        schedule.name: (package, schedule) for package in context.packages() for schedule in package.general.schedules
    }


def _needs_update(
    record: Record | None, package: Package, schedule: Schedule, now: datetime, context: KingContext
) -> bool:
    known = _read_state(record, now)
    if known is None or (known.next_run_at and known.next_run_at <= now):
        return True
    wanted = (package.name, schedule.cron, _zone(schedule, context).key)
    return (known.general, known.cron, known.time_zone) != wanted


def _has_same_times(before: ScheduleState, after: ScheduleState) -> bool:
    """Return whether a schedule still has the cron expression and time zone of its stored next time."""
    return (before.cron, before.time_zone) == (after.cron, after.time_zone)


def _read_state(record: Record | None, now: datetime) -> ScheduleState | None:
    """Return the stored progress of a schedule, or None if it is invalid or the schedule was stopped for a day.

    A schedule may stop for a shorter time because its package is briefly invalid. Then its missed times still count.
    """
    if record is None:
        return None
    try:
        timetable = msgspec.convert(record.doc, ScheduleState)
    except msgspec.ValidationError as error:
        _log.warning("the progress of a schedule is invalid: it starts again", schedule=record.id, error=str(error))
        return None
    return timetable if timetable.stopped_at is None or now - timetable.stopped_at < _DAY else None


def _zone(schedule: Schedule, context: KingContext) -> ZoneInfo:
    return ZoneInfo(schedule.time_zone) if schedule.time_zone else context.zone


def _times_until(cron: str, zone: ZoneInfo, after: datetime, now: datetime) -> Iterator[datetime]:
    return takewhile(lambda time: time <= now, schedule_times(cron, zone, after))
