"""Every internal event with its type and its data."""

from typing import ClassVar

import msgspec

# The documented format of the log calls an assignment a task.
_WIRE_NAMES = {"assignment_id": "task_id", "original_assignment_id": "original_task_id"}


class InternalEvent(msgspec.Struct, frozen=True, kw_only=True, rename=_WIRE_NAMES):
    """An observation of the system. `subject_field` is the name of the field that has the id of its subject.

    An event with a `text_line` is also a line of the text logs: this text, and the id of the subject.
    """

    type: ClassVar[str]
    actor: ClassVar[str]
    subject_field: ClassVar[str] = ""
    text_line: ClassVar[str] = ""


class EventDetected(InternalEvent, frozen=True, kw_only=True):
    """A new event arrived from an outside system, a schedule or a person."""

    type = "event.detected"
    actor = "sentinel, envoy, king, a person"
    subject_field = "event_id"
    text_line = "[EVENT] Emitted"

    event_id: str
    source: str
    event_type: str


class EventDispatched(InternalEvent, frozen=True, kw_only=True):
    """An event became an assignment."""

    type = "event.dispatched"
    actor = "king"
    subject_field = "event_id"
    text_line = "[EVENT] Dispatched"

    event_id: str
    assignment_id: str
    target_general: str


class EventDiscarded(InternalEvent, frozen=True, kw_only=True):
    """An event was dropped because no General wants it or a newer event replaces it."""

    type = "event.discarded"
    actor = "king"
    subject_field = "event_id"
    text_line = "[EVENT] Discarded"

    event_id: str
    event_type: str
    reason: str


class AssignmentCreated(InternalEvent, frozen=True, kw_only=True):
    """The King created an assignment."""

    type = "task.created"
    actor = "king"
    subject_field = "assignment_id"
    text_line = "[TASK] Created"

    assignment_id: str
    event_type: str
    target_general: str
    priority: str


class AssignmentStarted(InternalEvent, frozen=True, kw_only=True):
    """A General started an assignment."""

    type = "task.started"
    actor = "general"
    subject_field = "assignment_id"
    text_line = "[TASK] Started"

    assignment_id: str


class AssignmentCompleted(InternalEvent, frozen=True, kw_only=True):
    """A General reported the final result of an assignment."""

    type = "task.completed"
    actor = "general"
    subject_field = "assignment_id"
    text_line = "[TASK] Completed"

    assignment_id: str
    status: str
    duration_seconds: int


class AssignmentFailed(InternalEvent, frozen=True, kw_only=True):
    """An assignment failed, after `retry_count` retries."""

    type = "task.failed"
    actor = "general"
    subject_field = "assignment_id"
    text_line = "[TASK] Failed"

    assignment_id: str
    error: str
    retry_count: int


class AssignmentNeedsHuman(InternalEvent, frozen=True, kw_only=True):
    """An assignment waits for a decision by a person."""

    type = "task.needs_human"
    actor = "general"
    subject_field = "assignment_id"
    text_line = "[TASK] Needs a person"

    assignment_id: str
    question: str


class AssignmentResumed(InternalEvent, frozen=True, kw_only=True):
    """An assignment continues with the answer of a person."""

    type = "task.resumed"
    actor = "king"
    subject_field = "assignment_id"
    text_line = "[TASK] Resumed"

    assignment_id: str
    original_assignment_id: str


class SoldierSpawned(InternalEvent, frozen=True, kw_only=True):
    """An agent session started for an assignment."""

    type = "soldier.spawned"
    actor = "general"
    subject_field = "assignment_id"

    assignment_id: str
    soldier_id: str


class SoldierCompleted(InternalEvent, frozen=True, kw_only=True):
    """An agent session ended by itself with a result."""

    type = "soldier.completed"
    actor = "general"
    subject_field = "assignment_id"

    assignment_id: str
    soldier_id: str
    status: str


class SoldierTimeout(InternalEvent, frozen=True, kw_only=True):
    """An agent session exceeded its time limit."""

    type = "soldier.timeout"
    actor = "general"
    subject_field = "assignment_id"

    assignment_id: str
    soldier_id: str
    timeout_seconds: int


class SoldierKilled(InternalEvent, frozen=True, kw_only=True):
    """The Chamberlain killed an agent session that no run needs."""

    type = "soldier.killed"
    actor = "chamberlain"
    subject_field = "soldier_id"

    soldier_id: str
    reason: str


class HealthChanged(InternalEvent, frozen=True, kw_only=True):
    """The health level of the machine changed."""

    type = "system.health_changed"
    actor = "chamberlain"

    from_: str = msgspec.field(name="from")
    to: str
    reason: str


class HeartbeatMissed(InternalEvent, frozen=True, kw_only=True):
    """A role sent no heartbeat for too long."""

    type = "system.heartbeat_missed"
    actor = "chamberlain"
    subject_field = "target"

    target: str
    last_seen: str
    threshold_seconds: int


class SessionOrphaned(InternalEvent, frozen=True, kw_only=True):
    """A session is recorded as running but has no process."""

    type = "system.session_orphaned"
    actor = "chamberlain"
    subject_field = "assignment_id"

    soldier_id: str
    assignment_id: str


class ResourceWarned(InternalEvent, frozen=True, kw_only=True):
    """The use of a machine resource is above its threshold."""

    type = "system.resource_warning"
    actor = "chamberlain"

    metric: str
    value: float
    threshold: float


class TokenStatusChanged(InternalEvent, frozen=True, kw_only=True):
    """Today's spending crossed a warning level of the budget; amounts are exact decimal strings."""

    type = "system.token_status_changed"
    actor = "chamberlain"

    from_: str = msgspec.field(name="from")
    to: str
    daily_cost_usd: str


class TokenBudgetReset(InternalEvent, frozen=True, kw_only=True):
    """A new day started and the daily spending is zero again."""

    type = "system.token_budget_reset"
    actor = "chamberlain"

    date: str
    previous_cost: str


class SystemStarted(InternalEvent, frozen=True, kw_only=True):
    """The court started: `kingdom up` started all roles, or a role started by itself and no other role ran."""

    type = "system.startup"
    actor = "system"

    version: str


class SystemStopped(InternalEvent, frozen=True, kw_only=True):
    """The court stopped: the last running role stopped."""

    type = "system.shutdown"
    actor = "system"

    reason: str


class SessionRestarted(InternalEvent, frozen=True, kw_only=True):
    """A role started again after its process had died; the new process logs it."""

    type = "recovery.session_restarted"
    actor = "chamberlain"
    subject_field = "target"

    target: str
    pid: int


class SessionKilled(InternalEvent, frozen=True, kw_only=True):
    """A session was killed: no run needs it (`orphaned`), or it exceeded its time limit (`timeout`)."""

    type = "recovery.session_killed"
    actor = "chamberlain"
    subject_field = "soldier_id"

    soldier_id: str
    reason: str


class LogRotated(InternalEvent, frozen=True, kw_only=True):
    """A log file that was too large was rotated."""

    type = "recovery.log_rotated"
    actor = "chamberlain"

    file: str
    size_mb: float


class FilesCleaned(InternalEvent, frozen=True, kw_only=True):
    """Files, records or days of the log past their retention time were deleted."""

    type = "recovery.files_cleaned"
    actor = "chamberlain, general, engine, bus, a person"

    deleted_count: int


class SessionsCleaned(InternalEvent, frozen=True, kw_only=True):
    """Ended, killed and orphaned sessions were removed from the session list."""

    type = "recovery.sessions_cleaned"
    actor = "chamberlain"

    removed_count: int


class MessageSent(InternalEvent, frozen=True, kw_only=True):
    """The Envoy sent a message to people."""

    type = "message.sent"
    actor = "envoy"
    subject_field = "msg_id"

    msg_id: str
    assignment_id: str
    channel: str


class HumanResponded(InternalEvent, frozen=True, kw_only=True):
    """A person answered the question of an assignment."""

    type = "message.human_response"
    actor = "envoy"
    subject_field = "assignment_id"

    assignment_id: str
    thread_ts: str
