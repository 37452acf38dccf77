"""Read the log: update statistics and detect anomalies, one transaction per page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus, Transaction
from kingdom.court.chamberlain.anomalies import Alert
from kingdom.court.chamberlain.records import STATISTICS, STATS, load_or_create, notify, save_if_changed
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.chamberlain.statistics import Statistics
from kingdom.court.documents import EventStatus
from kingdom.court.records import EVENTS
from kingdom.workflow.records import run_transaction

_PAGE_ENTRIES = 1000
# At most this many overdue events are looked up in the store at once.
_LOOKED_UP_MAX = 100


@dataclass(frozen=True, slots=True)
class LogReading:
    """The result of reading the log: the alerts, and the reason for a yellow health level, or ""."""

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
    """Read the log to its end.

    `king_silent` is how long the King has had no heartbeat, or None if he runs. While it is not known whether he runs
    (`king_is_known` is False), waiting events cause no alert. Each page is counted and its alerts are queued in one
    transaction, so no entry counts twice if several Chamberlains run.
    """
    alerts: list[Alert] = []
    while True:
        stored_cursor, start = await _start(bus, operations)
        entries = await operations.read_log(start, _PAGE_ENTRIES)
        is_last = len(entries) < _PAGE_ENTRIES
        checks = is_last and king_is_known
        page = _LogPage(settings, zone, now, king_silent, stored_cursor, start, entries, checks_waiting_events=checks)
        found = await run_transaction(bus, page.process)
        alerts += found.alerts
        if is_last:
            return LogReading(tuple(alerts), found.many_timeouts)


async def _start(bus: Bus, operations: Operations) -> tuple[str, LogCursor]:
    """Return the stored cursor, and the cursor to read from.

    If the stored cursor is beyond the end of the log, the records were moved here from another store, where the entries
    were read already. Then reading starts at the end of the log.
    """
    async with bus.transaction() as transaction:
        _, statistics = await load_or_create(transaction, STATISTICS, STATS, Statistics)
    cursor, end = LogCursor.parse(statistics.cursor), await operations.log_end()
    return statistics.cursor, min(cursor, end)


@dataclass(frozen=True, slots=True)
class _LogPage:
    """A page of the log to process. Its entries follow `start`.

    If the stored cursor is no longer `stored_cursor`, another Chamberlain has processed them.
    """

    settings: ChamberlainSettings
    zone: ZoneInfo
    now: datetime
    king_silent: timedelta | None
    stored_cursor: str
    start: LogCursor
    entries: Sequence[LoggedEntry]
    checks_waiting_events: bool

    async def process(self, transaction: Transaction) -> LogReading:
        record, statistics = await load_or_create(transaction, STATISTICS, STATS, Statistics)
        # Another Chamberlain may have read the page already.
        if statistics.cursor == self.stored_cursor:
            self._add(statistics)
        statistics.sum_last_hour(self.now)
        alerts = statistics.watch.detect(self.now, self.settings.anomalies)
        if self.checks_waiting_events:
            alerts += await self._alert_undispatched(transaction, statistics)
        for alert in alerts:
            channel = self.settings.channel
            await notify(transaction, alert.text, channel=channel, now=self.now, zone=self.zone)
        await save_if_changed(transaction, record, statistics)
        return LogReading(tuple(alerts), statistics.watch.many_timeouts(self.now, self.settings.anomalies))

    def _add(self, statistics: Statistics) -> None:
        for logged in self.entries:
            statistics.add(logged.entry, self.zone)
            statistics.watch.observe(logged.entry, self.now)
        statistics.cursor = str(self.entries[-1].cursor if self.entries else self.start)
        if self.entries:
            statistics.updated_at = self.now
            statistics.forget_old()

    async def _alert_undispatched(self, transaction: Transaction, statistics: Statistics) -> list[Alert]:
        """Return the alert for events that wait too long. Events that ended without being dispatched do not count."""
        watch, settings = statistics.watch, self.settings.anomalies
        looked_up = watch.overdue(self.now, settings)[:_LOOKED_UP_MAX]
        records = {event: await transaction.get(EVENTS.name, event) for event in looked_up}
        waiting = [event for event, found in records.items() if found and found.state == EventStatus.PENDING]
        watch.forget(set(looked_up) - set(waiting))
        return watch.alert_undispatched(waiting, self.now, settings, self.king_silent)
