"""Reading the log: adds up what is new in it and looks for what is unusual, each part in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus, Transaction
from kingdom.court.chamberlain.anomalies import Alert
from kingdom.court.chamberlain.records import STATISTICS, STATS, notify, recall, remember
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.chamberlain.statistics import Statistics
from kingdom.court.documents import EventStatus
from kingdom.court.records import EVENTS
from kingdom.workflow.records import change

_AT_ONCE = 1000
# Of so many events it is looked at once whether they really wait.
_LOOKED_UP_MAX = 100


@dataclass(frozen=True, slots=True)
class LogReading:
    """What one look at the log found: what people were told, and why the health shall be yellow at least."""

    alerts: tuple[Alert, ...]
    many_timeouts: str


async def read_news(
    bus: Bus,
    operations: Operations,
    settings: ChamberlainSettings,
    zone: ZoneInfo,
    now: datetime,
    king_silent: timedelta | None,
    *,
    king_is_known: bool = True,
) -> LogReading:
    """Read the log to its end; `king_silent` tells for how long the King gave no sign of life, None if he is well.

    While nobody knows how he is, events that wait are not complained of.

    What is read, added up, told and remembered is one transaction per part, so that nothing counts twice, however
    many Chamberlains read.
    """
    alerts: list[Alert] = []
    while True:
        known, start = await _start(bus, operations)
        entries = await operations.read_log(start, _AT_ONCE)
        is_last = len(entries) < _AT_ONCE
        waits = is_last and king_is_known
        part = _Part(settings, zone, now, king_silent, known, start, entries, judges_waiting=waits)
        found = await change(bus, part.take)
        alerts += found.alerts
        if is_last:
            return LogReading(tuple(alerts), found.many_timeouts)


async def _start(bus: Bus, operations: Operations) -> tuple[str, LogCursor]:
    """Return how far the log was read, and where to read on.

    A store that was moved numbers its log anew: what is in it was read before, at its old place.
    """
    async with bus.transaction() as transaction:
        _, statistics = await recall(transaction, STATISTICS, STATS, Statistics)
    cursor, end = LogCursor.parse(statistics.cursor), await operations.log_end()
    return statistics.cursor, end if cursor.epoch > end.epoch else cursor


@dataclass(frozen=True, slots=True)
class _Part:
    settings: ChamberlainSettings
    zone: ZoneInfo
    now: datetime
    king_silent: timedelta | None
    known: str
    start: LogCursor
    entries: Sequence[LoggedEntry]
    judges_waiting: bool

    async def take(self, transaction: Transaction) -> LogReading:
        record, statistics = await recall(transaction, STATISTICS, STATS, Statistics)
        # Another Chamberlain may have read the same meanwhile.
        if statistics.cursor == self.known:
            self._add(statistics)
        alerts = statistics.watch.judge(self.now, self.settings.anomalies)
        if self.judges_waiting:
            alerts += await self._undispatched(transaction, statistics)
        for alert in alerts:
            channel = self.settings.channel
            await notify(transaction, alert.text, channel=channel, now=self.now, zone=self.zone)
        await remember(transaction, record, statistics)
        return LogReading(tuple(alerts), statistics.watch.many_timeouts(self.now, self.settings.anomalies))

    def _add(self, statistics: Statistics) -> None:
        for logged in self.entries:
            statistics.add(logged.entry, self.zone)
            statistics.watch.see(logged.entry, self.now)
        statistics.cursor = str(self.entries[-1].cursor if self.entries else self.start)
        if self.entries:
            statistics.updated_at = self.now
            statistics.forget_old()

    async def _undispatched(self, transaction: Transaction, statistics: Statistics) -> list[Alert]:
        """Return the alert for events that wait for too long; some may have ended without being dispatched."""
        watch, settings = statistics.watch, self.settings.anomalies
        looked_up = watch.overdue(self.now, settings)[:_LOOKED_UP_MAX]
        records = {event: await transaction.get(EVENTS.name, event) for event in looked_up}
        waiting = [event for event, found in records.items() if found and found.state == EventStatus.PENDING]
        watch.settle(set(looked_up) - set(waiting))
        return watch.undispatched(waiting, self.now, settings, self.king_silent)
