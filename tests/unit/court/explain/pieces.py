"""Records and log entries for timelines, as a store has them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.explain.timeline_data import StrandData, TimelineData

BEGIN = datetime(2026, 2, 7, 10, 0, tzinfo=UTC)
EVENT, TASK, RUN = "evt-github-1", "task-20260207-001", "wf-task-20260207-001"
WORK, STEP = f"{RUN}-w1", f"{RUN}-w1-t1"


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


class Log:
    """Writes entries with growing cursors."""

    def __init__(self) -> None:
        self.entries: list[LoggedEntry] = []

    def add(self, seconds: float, entry_type: str, actor: str = "engine", **data: Any) -> None:
        entry = LogEntry(type=entry_type, actor=actor, data=data, at=after(seconds))
        self.entries.append(LoggedEntry(LogCursor(len(self.entries) + 1, 1), entry))

    def about(self, *types: str) -> list[LoggedEntry]:
        return [each for each in self.entries if each.entry.type in types]

    def besides(self, *types: str) -> list[LoggedEntry]:
        return [each for each in self.entries if each.entry.type not in types]


def event(**more: Any) -> ExternalEvent:
    given: dict[str, Any] = {
        "id": EVENT,
        "type": "github.pr.comment",
        "source": "github",
        "repo": "acme/app",
        "payload": {"title": "Mend the door"},
        "priority": Priority.NORMAL,
        "created_at": BEGIN,
        "status": EventStatus.COMPLETED,
        "routes": (Route(general="gen-a", rule="gen-a#1", assignment_id=TASK),),
    }
    return ExternalEvent(**{**given, **more})


def assignment(**more: Any) -> Assignment:
    given: dict[str, Any] = {
        "id": TASK,
        "event_id": EVENT,
        "target_general": "gen-a",
        "type": "github.pr.comment",
        "payload": {},
        "priority": Priority.NORMAL,
        "created_at": after(1),
        "status": AssignmentStatus.COMPLETED,
        "started_at": after(2),
        "ended_at": after(600),
    }
    return Assignment(**{**given, **more})


HEARD = ("event.detected", "event.dispatched", "event.discarded")


def material(log: Log, *, assignments: Sequence[Assignment] | None = None, **strand: Any) -> TimelineData:
    """Return a timeline of one event and one assignment, built from a log."""
    given = [assignment()] if assignments is None else assignments
    happened = event()
    route = happened.routes[0]
    one = StrandData(id=TASK, route=route, assignments=given, entries=log.besides(*HEARD), **strand)
    return TimelineData(about=TASK, event_id=EVENT, event=happened, entries=log.about(*HEARD), strands=[one])


def begun() -> Log:
    """Return the log of a run whose agent has just got its query."""
    log = Log()
    log.add(0, "event.detected", "sentinel", event_id=EVENT, source="github", event_type="github.pr.comment")
    log.add(5, "event.dispatched", "king", event_id=EVENT, task_id=TASK, target_general="gen-a")
    log.add(6, "WorkflowPlaced", workflowId=RUN, host="host-a", epoch=1)
    log.add(7, "WorkStarted", workId=WORK, workflowId=RUN)
    log.add(8, "QuerySent", workId=WORK, taskId=STEP, attempt=1)
    return log


def answered(log: Log, seconds: float, **more: Any) -> None:
    data = {"workId": WORK, "taskId": STEP, "attempt": 1, "costUsd": 0.5, "response": "r", **more}
    log.add(seconds, "QueryResponded", "host-a", **data)
