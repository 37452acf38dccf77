"""Every internal event under its type and with its data; each is logged in the transaction that causes it."""

from typing import ClassVar

import msgspec


class InternalEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The system was observed; `about` names the field that holds the id of what it is about."""

    type: ClassVar[str]
    said_by: ClassVar[str]
    about: ClassVar[str] = ""


class EventDetected(InternalEvent, frozen=True, kw_only=True):
    """Something happened outside that nobody had told of before."""

    type = "event.detected"
    said_by = "sentinel, envoy"
    about = "event_id"

    event_id: str
    source: str
    event_type: str


class EventDispatched(InternalEvent, frozen=True, kw_only=True):
    """An event became an assignment."""

    type = "event.dispatched"
    said_by = "king"
    about = "event_id"

    event_id: str
    task_id: str
    target_general: str


class EventDiscarded(InternalEvent, frozen=True, kw_only=True):
    """An event becomes no assignment, since no General wants it or a newer one takes its place."""

    type = "event.discarded"
    said_by = "king"
    about = "event_id"

    event_id: str
    event_type: str
    reason: str


class TaskCreated(InternalEvent, frozen=True, kw_only=True):
    """An assignment was written."""

    type = "task.created"
    said_by = "king"
    about = "task_id"

    task_id: str
    event_type: str
    target_general: str
    priority: str


class TaskStarted(InternalEvent, frozen=True, kw_only=True):
    """A General took an assignment on."""

    type = "task.started"
    said_by = "general"
    about = "task_id"

    task_id: str


class TaskCompleted(InternalEvent, frozen=True, kw_only=True):
    """A General reported the final result of an assignment."""

    type = "task.completed"
    said_by = "general"
    about = "task_id"

    task_id: str
    status: str
    duration_seconds: int


class TaskFailed(InternalEvent, frozen=True, kw_only=True):
    """An assignment failed after all its retries."""

    type = "task.failed"
    said_by = "general"
    about = "task_id"

    task_id: str
    error: str
    retry_count: int


class TaskNeedsHuman(InternalEvent, frozen=True, kw_only=True):
    """An assignment waits for the judgement of a person."""

    type = "task.needs_human"
    said_by = "general"
    about = "task_id"

    task_id: str
    question: str


class TaskResumed(InternalEvent, frozen=True, kw_only=True):
    """An assignment goes on with the answer of a person."""

    type = "task.resumed"
    said_by = "king"
    about = "task_id"

    task_id: str
    original_task_id: str


class SoldierSpawned(InternalEvent, frozen=True, kw_only=True):
    """An agent session began to work for an assignment."""

    type = "soldier.spawned"
    said_by = "general"
    about = "task_id"

    task_id: str
    soldier_id: str


class SoldierCompleted(InternalEvent, frozen=True, kw_only=True):
    """An agent session ended by itself and left a result."""

    type = "soldier.completed"
    said_by = "general"
    about = "task_id"

    task_id: str
    soldier_id: str
    status: str


class SoldierTimeout(InternalEvent, frozen=True, kw_only=True):
    """An agent session took longer than it may."""

    type = "soldier.timeout"
    said_by = "general"
    about = "task_id"

    task_id: str
    soldier_id: str
    timeout_seconds: int


class SoldierKilled(InternalEvent, frozen=True, kw_only=True):
    """An agent session that nobody looks after was ended."""

    type = "soldier.killed"
    said_by = "chamberlain"
    about = "soldier_id"

    soldier_id: str
    reason: str


class HealthChanged(InternalEvent, frozen=True, kw_only=True):
    """The health of the machine is on another level."""

    type = "system.health_changed"
    said_by = "chamberlain"

    from_: str = msgspec.field(name="from")
    to: str
    reason: str


class HeartbeatMissed(InternalEvent, frozen=True, kw_only=True):
    """A role gave no sign of life for too long."""

    type = "system.heartbeat_missed"
    said_by = "chamberlain"
    about = "target"

    target: str
    last_seen: str
    threshold_seconds: int


class SessionOrphaned(InternalEvent, frozen=True, kw_only=True):
    """A session is on the books and runs nowhere."""

    type = "system.session_orphaned"
    said_by = "chamberlain"
    about = "task_id"

    soldier_id: str
    task_id: str


class ResourceWarned(InternalEvent, frozen=True, kw_only=True):
    """A resource of the machine is used beyond its threshold."""

    type = "system.resource_warning"
    said_by = "chamberlain"

    metric: str
    value: float
    threshold: float


class TokenStatusChanged(InternalEvent, frozen=True, kw_only=True):
    """What was spent today crossed a share of the budget; amounts are texts, since they are money."""

    type = "system.token_status_changed"
    said_by = "chamberlain"

    from_: str = msgspec.field(name="from")
    to: str
    daily_cost_usd: str


class TokenBudgetReset(InternalEvent, frozen=True, kw_only=True):
    """A new day began with nothing spent."""

    type = "system.token_budget_reset"
    said_by = "chamberlain"

    date: str
    previous_cost: str


class SystemStarted(InternalEvent, frozen=True, kw_only=True):
    """All roles were started."""

    type = "system.startup"
    said_by = "system"

    version: str


class SystemStopped(InternalEvent, frozen=True, kw_only=True):
    """All roles were stopped."""

    type = "system.shutdown"
    said_by = "system"

    reason: str


class SessionRestarted(InternalEvent, frozen=True, kw_only=True):
    """A role that was dead runs again."""

    type = "recovery.session_restarted"
    said_by = "chamberlain"
    about = "target"

    target: str
    pid: int


class SessionKilled(InternalEvent, frozen=True, kw_only=True):
    """A session was ended by force to recover from it."""

    type = "recovery.session_killed"
    said_by = "chamberlain"
    about = "soldier_id"

    soldier_id: str
    reason: str


class LogRotated(InternalEvent, frozen=True, kw_only=True):
    """A log file had become too large and was put aside."""

    type = "recovery.log_rotated"
    said_by = "chamberlain"

    file: str
    size_mb: float


class FilesCleaned(InternalEvent, frozen=True, kw_only=True):
    """What was older than it must be kept is gone."""

    type = "recovery.files_cleaned"
    said_by = "chamberlain"

    deleted_count: int


class SessionsCleaned(InternalEvent, frozen=True, kw_only=True):
    """Sessions that have ended are off the books."""

    type = "recovery.sessions_cleaned"
    said_by = "chamberlain"

    removed_count: int


class MessageSent(InternalEvent, frozen=True, kw_only=True):
    """People were told something."""

    type = "message.sent"
    said_by = "envoy"
    about = "msg_id"

    msg_id: str
    task_id: str
    channel: str


class HumanResponded(InternalEvent, frozen=True, kw_only=True):
    """A person answered the question of an assignment."""

    type = "message.human_response"
    said_by = "envoy"
    about = "task_id"

    task_id: str
    thread_ts: str
