"""Statistics of the log: counts per type and actor by hour and day, and durations per General. Pure."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.chronicle.catalog import CATALOG, read_log_entry
from kingdom.chronicle.events import AssignmentCompleted
from kingdom.court.chamberlain.anomalies import AnomalyState
from kingdom.court.chamberlain.calendar import day_of

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
    """The sums of the log up to `cursor`. Hours are in UTC.

    Only the last hours and days are kept, so the size of the record is bounded.
    """

    cursor: str = "0.0"
    updated_at: datetime | None = None
    # The first day of the log. Earlier days need no report.
    first_day: date | None = None
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
        for counts in (sums.counts, self.hours.setdefault(f"{entry.at.astimezone(UTC):%Y-%m-%dT%HZ}", {})):
            actors = counts.setdefault(entry.type, {})
            actors[entry.actor] = actors.get(entry.actor, 0) + 1
        event = read_log_entry(entry)
        if isinstance(event, AssignmentCompleted):
            sums.durations.setdefault(entry.actor, DurationSums()).add(event.duration_seconds)

    def forget_old(self) -> None:
        """Keep only the last hours and days."""
        self.hours = dict(sorted(self.hours.items())[-HOURS_KEPT:])
        self.days = dict(sorted(self.days.items())[-DAYS_KEPT:])

    def day(self, day: date) -> DayStatistics:
        """Return the sums of one day."""
        return self.days.get(day.isoformat(), DayStatistics())
