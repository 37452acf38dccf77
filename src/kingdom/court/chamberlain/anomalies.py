"""Detect unusual patterns in the log: failures in a row, many timeouts, and events that are not dispatched.

The same alert is repeated only after `cool_down_minutes`.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.chronicle.events import (
    AssignmentCompleted,
    AssignmentFailed,
    EventDetected,
    EventDiscarded,
    EventDispatched,
    SoldierTimeout,
)
from kingdom.court.chamberlain.settings import AnomalySettings

_WATCHED = frozenset(
    event.type
    for event in (EventDetected, EventDiscarded, EventDispatched, SoldierTimeout, AssignmentCompleted, AssignmentFailed)
)
# At most this many waiting events are stored. The oldest ones are enough for an alert.
_WAITING_MAX = 1000
# At most this many timeouts are stored, the newest ones.
_TIMEOUTS_MAX = 100
_TIMEOUTS = "timeouts"
_UNDISPATCHED = "undispatched"


class ObservedEntry(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The part of a log entry that matters here. `about` is the id of its event, if it has one."""

    at: datetime
    type: str
    actor: str
    about: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message to people about an anomaly."""

    key: str
    text: str


class AnomalyState(msgspec.Struct, kw_only=True):
    """What is stored to detect patterns.

    `fresh` are entries that are not processed yet, because an entry with an earlier time may still be written.
    `failures` counts the failures in a row of each General. `waiting` says when each undispatched event was detected,
    and `reported` when each alert was last sent.
    """

    fresh: list[ObservedEntry] = []
    failures: dict[str, int] = {}
    timeouts: list[datetime] = []
    waiting: dict[str, datetime] = {}
    reported: dict[str, datetime] = msgspec.field(default_factory=dict, name="told")

    def observe(self, entry: LogEntry, now: datetime) -> None:
        """Add a log entry. A time in the future counts as now."""
        if entry.type in _WATCHED:
            about = str(entry.data.get("event_id", ""))
            self.fresh.append(ObservedEntry(at=min(entry.at, now), type=entry.type, actor=entry.actor, about=about))

    def detect(self, now: datetime, settings: AnomalySettings) -> list[Alert]:
        """Process the entries that are old enough, and return the alerts."""
        newest = now - timedelta(seconds=settings.settle_seconds)
        ready = sorted(observed for observed in self.fresh if observed.at <= newest)
        self.fresh = [observed for observed in self.fresh if observed.at > newest]
        alerts = [alert for observed in ready for alert in self._process(observed, now, settings)]
        oldest = now - timedelta(minutes=settings.timeouts_window_minutes)
        self.timeouts = [at for at in self.timeouts if at > oldest][-_TIMEOUTS_MAX:]
        oldest_alert = now - timedelta(minutes=settings.cool_down_minutes)
        self.reported = {key: at for key, at in self.reported.items() if at > oldest_alert}
        return alerts

    def many_timeouts(self, now: datetime, settings: AnomalySettings) -> str:
        """Return the reason for a yellow health level if too many timeouts are within the window, else ""."""
        recent = self._recent_timeouts(now, settings)
        return f"soldier.timeout: {recent}" if recent >= settings.timeouts else ""

    def overdue(self, now: datetime, settings: AnomalySettings) -> list[str]:
        """Return the ids of events that the King has not dispatched for too long, the oldest first."""
        oldest = now - timedelta(minutes=settings.undispatched_minutes)
        return sorted((event for event, at in self.waiting.items() if at <= oldest), key=lambda e: (self.waiting[e], e))

    def forget(self, events: Collection[str]) -> None:
        """Remove events that no longer wait."""
        for event in events:
            self.waiting.pop(event, None)

    def alert_undispatched(
        self, events: Collection[str], now: datetime, settings: AnomalySettings, king_silent: timedelta | None
    ) -> list[Alert]:
        """Return the alert for events that wait too long, or nothing if people were alerted recently.

        `king_silent` is how long the King has had no heartbeat: None if he runs, the maximum if he never had one.
        """
        if not events or not self._may_alert(_UNDISPATCHED, now, settings):
            return []
        oldest = min(events, key=lambda event: (self.waiting[event], event))
        minutes = int((now - self.waiting[oldest]).total_seconds() // 60)
        waits = f"{len(events)} events wait" if len(events) > 1 else "An event waits"
        text = f"{waits} for the King, the oldest ({oldest}) for {minutes} minutes."
        if king_silent is None:
            text += " The King runs: check health, budget and slots."
        elif king_silent == timedelta.max:
            text += " The King has no heartbeat: start it with `kingdom up` or `kingdom role king`."
        else:
            text += f" The King has had no heartbeat for {int(king_silent.total_seconds())} seconds."
        return [Alert(key=_UNDISPATCHED, text=text)]

    def _process(self, observed: ObservedEntry, now: datetime, settings: AnomalySettings) -> list[Alert]:
        match observed.type:
            case AssignmentCompleted.type:
                self.failures.pop(observed.actor, None)
            case AssignmentFailed.type:
                return self._count_failure(observed.actor, now, settings)
            case SoldierTimeout.type:
                return self._count_timeout(observed.at, now, settings)
            case EventDetected.type if len(self.waiting) < _WAITING_MAX:
                self.waiting[observed.about] = observed.at
            case EventDispatched.type | EventDiscarded.type:
                self.waiting.pop(observed.about, None)
        return []

    def _count_failure(self, actor: str, now: datetime, settings: AnomalySettings) -> list[Alert]:
        failures = self.failures[actor] = self.failures.get(actor, 0) + 1
        key = f"failures:{actor}"
        if failures < settings.failures_in_a_row or not self._may_alert(key, now, settings):
            return []
        return [Alert(key=key, text=f"{actor} failed {failures} times in a row.")]

    def _count_timeout(self, at: datetime, now: datetime, settings: AnomalySettings) -> list[Alert]:
        self.timeouts.append(at)
        recent = self._recent_timeouts(at, settings)
        if recent < settings.timeouts or not self._may_alert(_TIMEOUTS, now, settings):
            return []
        minutes = settings.timeouts_window_minutes
        return [Alert(key=_TIMEOUTS, text=f"{recent} soldiers exceeded their time limit within {minutes:g} minutes.")]

    def _recent_timeouts(self, now: datetime, settings: AnomalySettings) -> int:
        oldest = now - timedelta(minutes=settings.timeouts_window_minutes)
        return sum(1 for at in self.timeouts if oldest < at <= now)

    def _may_alert(self, key: str, now: datetime, settings: AnomalySettings) -> bool:
        """Return whether the last alert with this key is long enough ago. If so, record a new alert."""
        last = self.reported.get(key)
        if last is not None and now - last < timedelta(minutes=settings.cool_down_minutes):
            return False
        self.reported[key] = now
        return True
