"""Entries of the log as roles write them, for tests that read them."""

from datetime import UTC, datetime, timedelta

from kingdom.bus.log import LogEntry
from kingdom.chronicle.catalog import to_log_entry
from kingdom.chronicle.events import (
    AssignmentCompleted,
    AssignmentCreated,
    AssignmentFailed,
    AssignmentNeedsHuman,
    EventDetected,
    EventDiscarded,
    EventDispatched,
    SoldierSpawned,
    SoldierTimeout,
)

START = datetime(2026, 2, 7, 10, tzinfo=UTC)


def after(*, hours: float = 0, minutes: float = 0, seconds: float = 0) -> datetime:
    return START + timedelta(hours=hours, minutes=minutes, seconds=seconds)


def created(at: datetime, general: str = "gen-pr") -> LogEntry:
    event = AssignmentCreated(assignment_id="task-1", event_type="github.pr", target_general=general, priority="normal")
    return to_log_entry(event, "king", at)


def completed(at: datetime, general: str = "gen-pr", seconds: int = 60) -> LogEntry:
    return to_log_entry(
        AssignmentCompleted(assignment_id="task-1", status="success", duration_seconds=seconds), general, at
    )


def failed(at: datetime, general: str = "gen-pr") -> LogEntry:
    return to_log_entry(AssignmentFailed(assignment_id="task-1", error="no", retry_count=2), general, at)


def needs_human(at: datetime, general: str = "gen-pr") -> LogEntry:
    return to_log_entry(AssignmentNeedsHuman(assignment_id="task-1", question="Which?"), general, at)


def spawned(at: datetime, general: str = "gen-pr") -> LogEntry:
    return to_log_entry(SoldierSpawned(assignment_id="task-1", soldier_id="soldier-1"), general, at)


def timed_out(at: datetime, general: str = "gen-pr") -> LogEntry:
    return to_log_entry(
        SoldierTimeout(assignment_id="task-1", soldier_id="soldier-1", timeout_seconds=1800), general, at
    )


def detected(at: datetime, event_id: str = "evt-github-1") -> LogEntry:
    return to_log_entry(EventDetected(event_id=event_id, source="github", event_type="github.pr"), "sentinel", at)


def dispatched(at: datetime, event_id: str = "evt-github-1") -> LogEntry:
    return to_log_entry(EventDispatched(event_id=event_id, assignment_id="task-1", target_general="gen-pr"), "king", at)


def discarded(at: datetime, event_id: str = "evt-github-1") -> LogEntry:
    return to_log_entry(EventDiscarded(event_id=event_id, event_type="github.pr", reason="unrouted"), "king", at)
