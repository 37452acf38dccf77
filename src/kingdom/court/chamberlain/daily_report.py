"""The daily report: what happened on a day, as a document and as text for people. Each report is sent once."""

from datetime import date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import (
    AssignmentCompleted,
    AssignmentCreated,
    AssignmentFailed,
    AssignmentNeedsHuman,
    SoldierSpawned,
    SoldierTimeout,
)
from kingdom.court.chamberlain.calendar import days_after, latest_due
from kingdom.court.chamberlain.records import STATE, STATISTICS, STATS, load_or_create, notify, save_if_changed
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.chamberlain.statistics import DayStatistics, Statistics
from kingdom.court.documents import MessageType, Urgency
from kingdom.workflow.records import run_transaction

# The deduplication scope that prevents sending the report of a day twice.
_ONCE = "daily-report"
_ONCE_KEPT = timedelta(days=60)
_DAY = timedelta(days=1)


class AssignmentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The assignments of a day."""

    created: int
    completed: int
    failed: int
    needs_human: int


class SoldierCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many agent sessions started, and how many exceeded their time limit."""

    spawned: int
    timeout: int


class DailyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on one day in the court's time zone."""

    type: Literal["daily_report"] = "daily_report"
    date: date
    tasks: AssignmentCounts
    soldiers: SoldierCounts
    avg_duration_seconds: dict[str, int]


class ReportState(msgspec.Struct, kw_only=True):
    """The last reported day."""

    last_day: date | None = None


def report_of(day: date, sums: DayStatistics) -> DailyReport:
    """Return the report of a day from its sums."""
    return DailyReport(
        date=day,
        tasks=AssignmentCounts(
            created=sums.count(AssignmentCreated.type),
            completed=sums.count(AssignmentCompleted.type),
            failed=sums.count(AssignmentFailed.type),
            needs_human=sums.count(AssignmentNeedsHuman.type),
        ),
        soldiers=SoldierCounts(spawned=sums.count(SoldierSpawned.type), timeout=sums.count(SoldierTimeout.type)),
        avg_duration_seconds={actor: each.average_seconds for actor, each in sorted(sums.durations.items())},
    )


def report_text(report: DailyReport) -> str:
    """Return a report as text for people."""
    tasks, soldiers = report.tasks, report.soldiers
    ends = f"{tasks.completed} completed, {tasks.failed} failed, {tasks.needs_human} needed a person"
    lines = [
        f"Daily report for {report.date}",
        f"Assignments: {tasks.created} created, {ends}",
        f"Soldiers: {soldiers.spawned} started, {soldiers.timeout} exceeded their time limit",
    ]
    averages = [f"{actor} {_duration(seconds)}" for actor, seconds in report.avg_duration_seconds.items()]
    return "\n".join([*lines, *([f"Average duration: {', '.join(averages)}"] if averages else [])])


def days_to_report(
    now: datetime, zone: ZoneInfo, settings: ChamberlainSettings, first_day: date | None, last_day: date | None
) -> list[date]:
    """Return the days to report now, the oldest first. A day is due at the report hour of the next day."""
    until = latest_due(now, zone, settings.report_hour) - _DAY
    if first_day is None:
        return []
    oldest = max(first_day, until - (settings.report_days_back - 1) * _DAY)
    return list(days_after(max(oldest - _DAY, last_day or date.min), until))


async def send_reports(bus: Bus, settings: ChamberlainSettings, zone: ZoneInfo, now: datetime) -> list[date]:
    """Send the report of every due day, and return these days.

    The log must have been read completely, so that the sums are correct.
    """

    async def act(transaction: Transaction) -> list[date]:
        record, sent = await load_or_create(transaction, STATE, "reports", ReportState)
        _, statistics = await load_or_create(transaction, STATISTICS, STATS, Statistics)
        days = days_to_report(now, zone, settings, statistics.first_day, sent.last_day)
        reported = []
        for day in days:
            if not await transaction.once(_ONCE, day.isoformat(), _ONCE_KEPT):
                continue
            report = report_of(day, statistics.day(day))
            await notify(
                transaction,
                report_text(report),
                channel=settings.channel,
                now=now,
                zone=zone,
                kind=MessageType.REPORT,
                urgency=Urgency.NORMAL,
                context=msgspec.to_builtins(report),
            )
            reported.append(day)
        if days:
            await save_if_changed(transaction, record, ReportState(last_day=days[-1]))
        return reported

    return await run_transaction(bus, act)


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "0 s"
