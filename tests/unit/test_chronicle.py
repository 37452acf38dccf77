"""The catalog of internal events has exactly the documented types and fields."""

from datetime import UTC, datetime

import msgspec
import pytest

from kingdom.bus.log import LogEntry
from kingdom.chronicle.catalog import CATALOG, page, read_log_entry, to_log_entry
from kingdom.chronicle.events import (
    AssignmentCompleted,
    AssignmentFailed,
    HealthChanged,
    InternalEvent,
    SoldierKilled,
    TokenStatusChanged,
)

AT = datetime(2026, 2, 7, 10, tzinfo=UTC)
EXPECTED = {
    "event.detected": ("event_id", "source", "event_type"),
    "event.dispatched": ("event_id", "task_id", "target_general"),
    "event.discarded": ("event_id", "event_type", "reason"),
    "task.created": ("task_id", "event_type", "target_general", "priority"),
    "task.started": ("task_id",),
    "task.completed": ("task_id", "status", "duration_seconds"),
    "task.failed": ("task_id", "error", "retry_count"),
    "task.needs_human": ("task_id", "question"),
    "task.resumed": ("task_id", "original_task_id"),
    "soldier.spawned": ("task_id", "soldier_id"),
    "soldier.completed": ("task_id", "soldier_id", "status"),
    "soldier.timeout": ("task_id", "soldier_id", "timeout_seconds"),
    "soldier.killed": ("soldier_id", "reason"),
    "system.health_changed": ("from", "to", "reason"),
    "system.heartbeat_missed": ("target", "last_seen", "threshold_seconds"),
    "system.session_orphaned": ("soldier_id", "task_id"),
    "system.resource_warning": ("metric", "value", "threshold"),
    "system.token_status_changed": ("from", "to", "daily_cost_usd"),
    "system.token_budget_reset": ("date", "previous_cost"),
    "system.startup": ("version",),
    "system.shutdown": ("reason",),
    "recovery.session_restarted": ("target", "pid"),
    "recovery.session_killed": ("soldier_id", "reason"),
    "recovery.log_rotated": ("file", "size_mb"),
    "recovery.files_cleaned": ("deleted_count",),
    "recovery.sessions_cleaned": ("removed_count",),
    "message.sent": ("msg_id", "task_id", "channel"),
    "message.human_response": ("task_id", "thread_ts"),
}


def test_there_are_28_types_each_with_its_data() -> None:
    known = {
        name: tuple(field.encode_name for field in msgspec.structs.fields(event)) for name, event in CATALOG.items()
    }
    assert len(EXPECTED) == 28
    assert known == EXPECTED


def test_an_entry_shows_time_event_role_and_data() -> None:
    logged = to_log_entry(
        AssignmentCompleted(assignment_id="task-20260207-001", status="success", duration_seconds=180), "gen-pr", AT
    )
    assert (logged.at, logged.type, logged.actor) == (AT, "task.completed", "gen-pr")
    assert logged.data == {"task_id": "task-20260207-001", "status": "success", "duration_seconds": 180}
    assert (logged.aggregate_type, logged.aggregate_id) == ("task", "task-20260207-001")


def test_a_word_that_python_reserves_is_written_as_it_is() -> None:
    changed = HealthChanged(from_="green", to="yellow", reason="cpu_percent: 72")
    assert to_log_entry(changed, "chamberlain", AT).data == {
        "from": "green",
        "to": "yellow",
        "reason": "cpu_percent: 72",
    }


@pytest.mark.parametrize(
    "event",
    [
        AssignmentFailed(assignment_id="task-1", error="Permission denied", retry_count=2),
        SoldierKilled(soldier_id="soldier-1", reason="orphaned"),
        TokenStatusChanged(from_="ok", to="warning", daily_cost_usd="215.40"),
    ],
)
def test_a_logged_event_is_read_back_unchanged(event: InternalEvent) -> None:
    assert read_log_entry(to_log_entry(event, "tester", AT)) == event


def test_other_log_entries_are_not_read() -> None:
    assert read_log_entry(LogEntry(type="WorkStarted", actor="engine", data={"workId": "w"})) is None
    assert read_log_entry(LogEntry(type="task.completed", actor="gen-pr", data={"task_id": "task-1"})) is None


def test_the_page_has_a_row_for_every_type() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(EXPECTED)
