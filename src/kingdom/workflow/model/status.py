"""Statuses and status machines as tables. Error messages, documentation and tests use these tables."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

from kingdom.errors import IllegalTransition

S = TypeVar("S", bound=StrEnum)


class WorkflowStatus(StrEnum):
    """The status of a run."""

    CREATED = "CREATED"
    PREPARING = "PREPARING"
    READY = "READY"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    AWAITING = "AWAITING"
    RESUMING = "RESUMING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkStatus(StrEnum):
    """The status of a Work, derived from its parts."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskStatus(StrEnum):
    """The status of a Task, derived from its query and its report."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class AgentStatus(StrEnum):
    """The status of the agent of a Work."""

    IDLE = "IDLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    ERROR = "ERROR"


class QueryStatus(StrEnum):
    """The status of a prompt. UNKNOWN means that its agent ended before an answer arrived."""

    PENDING = "PENDING"
    SENT = "SENT"
    RESPONDED = "RESPONDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"


class ReportStatus(StrEnum):
    """The status of the report of a Task."""

    NOT_REQUIRED = "NOT_REQUIRED"
    PENDING = "PENDING"
    GENERATING = "GENERATING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class VerificationStatus(StrEnum):
    """The status of the checks of a Work."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PASSED = "PASSED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CheckpointStatus(StrEnum):
    """The status of the checkpoint after a Work."""

    PENDING = "PENDING"
    TAKING = "TAKING"
    TAKEN = "TAKEN"
    FAILED = "FAILED"


class WorkTreeStatus(StrEnum):
    """The status of the checkout of one repository."""

    PENDING = "PENDING"
    CREATING = "CREATING"
    READY = "READY"
    FAILED = "FAILED"
    PENDING_RELEASE = "PENDING_RELEASE"
    RELEASED = "RELEASED"


class StatusMachine(Generic[S]):
    """The states of one kind of object, and the allowed transitions.

    `transitions` maps a state to the names of the states that can follow, separated by spaces.
    """

    def __init__(self, name: str, states: type[S], transitions: Mapping[S, str]) -> None:
        self.name = name
        self.states = frozenset(states)
        self.transitions = {
            state: frozenset(states(to) for to in transitions.get(state, "").split()) for state in states
        }

    @property
    def final(self) -> frozenset[S]:
        """Return the states that no other state can follow."""
        return frozenset(state for state, following in self.transitions.items() if not following)

    def check(self, part_id: str, state: S, to: S) -> None:
        """Refuse a transition that the table does not allow."""
        if to not in self.transitions[state]:
            raise IllegalTransition(f"{self.name} {part_id}", state, f"it cannot become {to}", self.transitions[state])


WORKFLOW = StatusMachine(
    "Workflow",
    WorkflowStatus,
    {
        WorkflowStatus.CREATED: "PREPARING CANCELLED",
        WorkflowStatus.PREPARING: "READY FAILED CANCELLED",
        WorkflowStatus.READY: "RUNNING PREPARING CANCELLED",
        WorkflowStatus.RUNNING: "COMPLETED PAUSED AWAITING RESUMING FAILED CANCELLED",
        WorkflowStatus.PAUSED: "RESUMING CANCELLED",
        WorkflowStatus.AWAITING: "RESUMING CANCELLED",
        WorkflowStatus.RESUMING: "RUNNING FAILED CANCELLED",
        WorkflowStatus.FAILED: "RESUMING PREPARING CANCELLED",
    },
)
WORK = StatusMachine(
    "Work",
    WorkStatus,
    {
        WorkStatus.PENDING: "RUNNING PAUSED FAILED CANCELLED",
        WorkStatus.RUNNING: "PENDING COMPLETED PAUSED FAILED CANCELLED",
        WorkStatus.PAUSED: "PENDING CANCELLED",
        WorkStatus.FAILED: "PENDING PAUSED CANCELLED",
        WorkStatus.COMPLETED: "PENDING",
    },
)
AGENT = StatusMachine(
    "Agent",
    AgentStatus,
    {
        AgentStatus.IDLE: "STARTING",
        AgentStatus.STARTING: "RUNNING STOPPED ERROR",
        AgentStatus.RUNNING: "STOPPED ERROR",
        AgentStatus.STOPPED: "STARTING IDLE",
        AgentStatus.ERROR: "STOPPED IDLE",
    },
)
QUERY = StatusMachine(
    "Query",
    QueryStatus,
    {
        QueryStatus.PENDING: "SENT CANCELLED",
        QueryStatus.SENT: "RESPONDED FAILED UNKNOWN PENDING",
        QueryStatus.UNKNOWN: "PENDING RESPONDED FAILED CANCELLED",
        QueryStatus.RESPONDED: "PENDING",
        QueryStatus.FAILED: "PENDING",
    },
)
REPORT = StatusMachine(
    "Report",
    ReportStatus,
    {
        ReportStatus.PENDING: "GENERATING CANCELLED",
        ReportStatus.GENERATING: "COMPLETED FAILED PENDING",
        ReportStatus.COMPLETED: "PENDING",
        ReportStatus.FAILED: "PENDING",
    },
)
VERIFICATION = StatusMachine(
    "Verification",
    VerificationStatus,
    {
        VerificationStatus.PENDING: "RUNNING CANCELLED",
        VerificationStatus.RUNNING: "PASSED FAILED PENDING",
        VerificationStatus.PASSED: "PENDING",
        VerificationStatus.FAILED: "PENDING CANCELLED",
    },
)
CHECKPOINT = StatusMachine(
    "Checkpoint",
    CheckpointStatus,
    {
        CheckpointStatus.PENDING: "TAKING",
        CheckpointStatus.TAKING: "TAKEN FAILED PENDING",
        CheckpointStatus.TAKEN: "PENDING",
        CheckpointStatus.FAILED: "PENDING",
    },
)
WORK_TREE = StatusMachine(
    "WorkTree",
    WorkTreeStatus,
    {
        WorkTreeStatus.PENDING: "CREATING RELEASED",
        WorkTreeStatus.CREATING: "READY FAILED PENDING PENDING_RELEASE",
        WorkTreeStatus.READY: "PENDING FAILED PENDING_RELEASE",
        WorkTreeStatus.FAILED: "PENDING RELEASED",
        WorkTreeStatus.PENDING_RELEASE: "READY RELEASED",
    },
)
MACHINES: tuple[StatusMachine[Any], ...] = (WORKFLOW, WORK, AGENT, QUERY, REPORT, VERIFICATION, CHECKPOINT, WORK_TREE)

_NOT_FINAL = WORKFLOW.states - WORKFLOW.final
# Each operation on a Workflow, and the statuses that allow it.
OPERATIONS: Mapping[str, frozenset[WorkflowStatus]] = {
    "place": _NOT_FINAL,
    "prepare": frozenset({WorkflowStatus.CREATED}),
    "start": frozenset({WorkflowStatus.CREATED, WorkflowStatus.READY}),
    "pause": frozenset({WorkflowStatus.RUNNING}),
    "resume": frozenset({WorkflowStatus.PAUSED, WorkflowStatus.AWAITING, WorkflowStatus.FAILED}),
    "cancel": _NOT_FINAL,
    "modify": _NOT_FINAL - {WorkflowStatus.PREPARING, WorkflowStatus.RESUMING},
    "release": frozenset({WorkflowStatus.COMPLETED, WorkflowStatus.CANCELLED}),
    "delete": frozenset(
        {WorkflowStatus.CREATED, WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
    ),
}


def allowed_operations(status: WorkflowStatus) -> list[str]:
    """Return the operations that a person may request in this status."""
    # Only the engine requests a placement.
    return [operation for operation, states in OPERATIONS.items() if status in states and operation != "place"]
