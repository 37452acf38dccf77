"""Detect three unusual patterns in the log. People are alerted once, then not again for a while. Pure."""

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
# Later ones are not stored. The oldest are enough for an alert.
_WAITING_MAX = 1000
_TIMEOUTS_MAX = 100
_TIMEOUTS = "timeouts"
_UNDISPATCHED = "undispatched"


class ObservedEntry(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The relevant part of one log entry. `about` is the id of an event."""

    at: datetime
    type: str
    actor: str
    about: str = ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message to people about an anomaly."""

    key: str
    text: str


class AnomalyState(msgspec.Struct, kw_only=True):
    """What is stored of the log to detect patterns.

    Entries stay in `fresh` until no earlier one can follow, so that they are processed in the order of their times.
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
        settled = now - timedelta(seconds=settings.settle_seconds)
        ripe = sorted(sight for sight in self.fresh if sight.at <= settled)
        self.fresh = [sight for sight in self.fresh if sight.at > settled]
        alerts = [alert for sight in ripe for alert in self._process(sight, now, settings)]
        oldest = now - timedelta(minutes=settings.timeouts_window_minutes)
        self.timeouts = [at for at in self.timeouts if at > oldest][-_TIMEOUTS_MAX:]
        cool = now - timedelta(minutes=settings.cool_down_minutes)
        self.reported = {key: at for key, at in self.reported.items() if at > cool}
        return alerts

    def many_timeouts(self, now: datetime, settings: AnomalySettings) -> str:
        """Return why health must be at least yellow, or "": too many timeouts within the window."""
        recent = self._recent(now, settings)
        return f"soldier.timeout: {recent}" if recent >= settings.timeouts else ""

    def overdue(self, now: datetime, settings: AnomalySettings) -> list[str]:
        """Return the ids of events that the King has not dispatched for too long, the oldest first."""
        oldest = now - timedelta(minutes=settings.undispatched_minutes)
        return sorted((event for event, at in self.waiting.items() if at <= oldest), key=lambda e: (self.waiting[e], e))

    def forget(self, events: Collection[str]) -> None:
        """Remove events that no longer wait."""
        for event in events:
            self.waiting.pop(event, None)

    def undispatched(
        self, events: Collection[str], now: datetime, settings: AnomalySettings, king_silent: timedelta | None
    ) -> list[Alert]:
        """Return the alert for events that wait too long. It says whether the King has a heartbeat."""
        if not events or not self._may_alert(_UNDISPATCHED, now, settings):
            return []
        oldest = min(events, key=lambda event: (self.waiting[event], event))
        minutes = int((now - self.waiting[oldest]).total_seconds() // 60)
        waits = f"{len(events)} events wait" if len(events) > 1 else "An event waits"
        text = f"{waits} for the King, the oldest ({oldest}) for {minutes} minutes."
        if king_silent is None:
            text += " The King runs: check health, budget and slots."
        elif king_silent == timedelta.max:
            text += " The King has no heartbeat: does he run?"
        else:
            text += f" The King has had no heartbeat for {int(king_silent.total_seconds())} seconds."
        return [Alert(key=_UNDISPATCHED, text=text)]

    def _process(self, sight: ObservedEntry, now: datetime, settings: AnomalySettings) -> list[Alert]:
        match sight.type:
            case AssignmentCompleted.type:
                self.failures.pop(sight.actor, None)
            case AssignmentFailed.type:
                return self._fail(sight.actor, now, settings)
            case SoldierTimeout.type:
                return self._time_out(sight.at, now, settings)
            case EventDetected.type if len(self.waiting) < _WAITING_MAX:
                self.waiting[sight.about] = sight.at
            case EventDispatched.type | EventDiscarded.type:
                self.waiting.pop(sight.about, None)
        return []

    def _fail(self, actor: str, now: datetime, settings: AnomalySettings) -> list[Alert]:
        failures = self.failures[actor] = self.failures.get(actor, 0) + 1
        key = f"failures:{actor}"
        if failures < settings.failures_in_a_row or not self._may_alert(key, now, settings):
            return []
        return [Alert(key=key, text=f"{actor} failed {failures} times in a row.")]

    def _time_out(self, at: datetime, now: datetime, settings: AnomalySettings) -> list[Alert]:
        self.timeouts.append(at)
        recent = self._recent(at, settings)
        if recent < settings.timeouts or not self._may_alert(_TIMEOUTS, now, settings):
            return []
        minutes = settings.timeouts_window_minutes
        return [Alert(key=_TIMEOUTS, text=f"{recent} soldiers exceeded their time limit within {minutes:g} minutes.")]

    def _recent(self, now: datetime, settings: AnomalySettings) -> int:
        oldest = now - timedelta(minutes=settings.timeouts_window_minutes)
        return sum(1 for at in self.timeouts if oldest < at <= now)

    def _may_alert(self, key: str, now: datetime, settings: AnomalySettings) -> bool:
        """Return whether the last alert of this kind is long enough ago, and record the new one."""
        last = self.reported.get(key)
        if last is not None and now - last < timedelta(minutes=settings.cool_down_minutes):
            return False
        self.reported[key] = now
        return True
