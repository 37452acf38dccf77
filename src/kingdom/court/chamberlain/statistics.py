"""Statistics of the log: counts per type and actor by hour and day, and durations per General."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.chronicle.catalog import CATALOG, read_log_entry
from kingdom.chronicle.events import AssignmentCompleted
from kingdom.court.chamberlain.anomalies import AnomalyState
from kingdom.court.chamberlain.calendar import day_of

# The last hour is summed from this many minutes.
MINUTES_KEPT = 60
HOURS_KEPT = 48
DAYS_KEPT = 31
# Counts by event type, then by actor.
Counts = dict[str, dict[str, int]]


class DurationSums(msgspec.Struct, kw_only=True):
    """How long the assignments of one General took."""

    count: int = 0
    total_seconds: int = 0
    average_seconds: int = 0

    def add(self, seconds: int) -> None:
        """Add one duration."""
        self.count += 1
        self.total_seconds += seconds
        self.average_seconds = round(self.total_seconds / self.count)


class DayStatistics(msgspec.Struct, kw_only=True):
    """What happened on one day in the court's time zone."""

    counts: Counts = {}
    durations: dict[str, DurationSums] = {}

    def count(self, event_type: str) -> int:
        """Return how often an event type occurred, for all actors."""
        return sum(self.counts.get(event_type, {}).values())


class Statistics(msgspec.Struct, kw_only=True):
    """The sums of the log up to `cursor`. Hours and minutes are in UTC.

    `last_hour` has the sums of the sixty minutes before the last reading, `hours` those of each hour of the clock.
    Only the last hours and days are kept, so the size of the record is bounded.
    """

    cursor: str = "0.0"
    updated_at: datetime | None = None
    # The first day of the log. Earlier days need no report.
    first_day: date | None = None
    last_hour: Counts = {}
    minutes: dict[str, Counts] = {}
    hours: dict[str, Counts] = {}
    days: dict[str, DayStatistics] = {}
    watch: AnomalyState = msgspec.field(default_factory=AnomalyState)

    def add(self, entry: LogEntry, zone: ZoneInfo) -> None:
        """Count a log entry in the hour and on the day when it was written. Only internal events count."""
        if entry.type not in CATALOG:
            return
        day = day_of(entry.at, zone)
        self.first_day = min(self.first_day or day, day)
        sums = self.days.setdefault(day.isoformat(), DayStatistics())
        hour = self.hours.setdefault(f"{entry.at.astimezone(UTC):%Y-%m-%dT%HZ}", {})
        for counts in (sums.counts, hour, self.minutes.setdefault(_minute(entry.at), {})):
            _count(counts, entry.type, entry.actor)
        event = read_log_entry(entry)
        if isinstance(event, AssignmentCompleted):
            sums.durations.setdefault(entry.actor, DurationSums()).add(event.duration_seconds)

    def sum_last_hour(self, now: datetime) -> None:
        """Sum the last sixty minutes of the clock, including the current one, and drop earlier ones."""
        first = _minute(now - timedelta(minutes=MINUTES_KEPT - 1))
        self.minutes = {minute: counts for minute, counts in sorted(self.minutes.items()) if minute >= first}
        self.last_hour = {}
        for counts in self.minutes.values():
            for event_type, actors in counts.items():
                for actor, times in actors.items():
                    _count(self.last_hour, event_type, actor, times)

    def forget_old(self) -> None:
        """Keep only the last hours and days."""
        self.hours = dict(sorted(self.hours.items())[-HOURS_KEPT:])
        self.days = dict(sorted(self.days.items())[-DAYS_KEPT:])

    def day(self, day: date) -> DayStatistics:
        """Return the sums of one day."""
        return self.days.get(day.isoformat(), DayStatistics())


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _count(counts: Counts, event_type: str, actor: str, times: int = 1) -> None:
    actors = counts.setdefault(event_type, {})
    actors[actor] = actors.get(actor, 0) + times
