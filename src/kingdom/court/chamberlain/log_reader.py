"""Read the log: update statistics and detect anomalies, one transaction per page."""

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
from kingdom.workflow.records import run_transaction

_AT_ONCE = 1000
# How many overdue events one page checks in the store.
_LOOKED_UP_MAX = 100


@dataclass(frozen=True, slots=True)
class LogReading:
    """The result of reading the log: the alerts, and why health must be at least yellow."""

    alerts: tuple[Alert, ...]
    many_timeouts: str


async def read_new_entries(
    bus: Bus,
    operations: Operations,
    settings: ChamberlainSettings,
    zone: ZoneInfo,
    now: datetime,
    king_silent: timedelta | None,
    *,
    king_is_known: bool = True,
) -> LogReading:
    """Read the log to its end. `king_silent` is how long the King has had no heartbeat, None if he runs.

    Unless `king_is_known`, no alert about waiting events is made.

    Each page is read, counted, reported and recorded in one transaction, so nothing counts twice with several
    Chamberlains.
    """
    alerts: list[Alert] = []
    while True:
        known, start = await _start(bus, operations)
        entries = await operations.read_log(start, _AT_ONCE)
        is_last = len(entries) < _AT_ONCE
        waits = is_last and king_is_known
        part = _LogPage(settings, zone, now, king_silent, known, start, entries, judges_waiting=waits)
        found = await run_transaction(bus, part.take)
        alerts += found.alerts
        if is_last:
            return LogReading(tuple(alerts), found.many_timeouts)


async def _start(bus: Bus, operations: Operations) -> tuple[str, LogCursor]:
    """Return the stored cursor, and the cursor to read from.

    A moved store numbers its log again. Its entries were read before the move.
    """
    async with bus.transaction() as transaction:
        _, statistics = await recall(transaction, STATISTICS, STATS, Statistics)
    cursor, end = LogCursor.parse(statistics.cursor), await operations.log_end()
    return statistics.cursor, end if cursor.epoch > end.epoch else cursor


@dataclass(frozen=True, slots=True)
class _LogPage:
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
        # Another Chamberlain may have read the page already.
        if statistics.cursor == self.known:
            self._add(statistics)
        alerts = statistics.watch.detect(self.now, self.settings.anomalies)
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
            statistics.watch.observe(logged.entry, self.now)
        statistics.cursor = str(self.entries[-1].cursor if self.entries else self.start)
        if self.entries:
            statistics.updated_at = self.now
            statistics.forget_old()

    async def _undispatched(self, transaction: Transaction, statistics: Statistics) -> list[Alert]:
        """Return the alert for events that wait too long. Some may have ended without being dispatched."""
        watch, settings = statistics.watch, self.settings.anomalies
        looked_up = watch.overdue(self.now, settings)[:_LOOKED_UP_MAX]
        records = {event: await transaction.get(EVENTS.name, event) for event in looked_up}
        waiting = [event for event, found in records.items() if found and found.state == EventStatus.PENDING]
        watch.forget(set(looked_up) - set(waiting))
        return watch.undispatched(waiting, self.now, settings, self.king_silent)
