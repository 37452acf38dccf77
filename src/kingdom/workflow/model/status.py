"""Status machines as data: error messages, documentation and tests all come from these tables."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

from kingdom.errors import IllegalTransition

S = TypeVar("S", bound=StrEnum)


class WorkflowStatus(StrEnum):
    """Where a run stands."""

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
    """Where one agent session of a run stands; derived from its parts, never set."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskStatus(StrEnum):
    """Where one step of a session stands; derived from its query and its report."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class AgentStatus(StrEnum):
    """What is known of the agent of a Work."""

    IDLE = "IDLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    ERROR = "ERROR"


class QueryStatus(StrEnum):
    """What became of a prompt; UNKNOWN when its agent ended before anybody saw an answer."""

    PENDING = "PENDING"
    SENT = "SENT"
    RESPONDED = "RESPONDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"


class ReportStatus(StrEnum):
    """What became of the document of a Task."""

    NOT_REQUIRED = "NOT_REQUIRED"
    PENDING = "PENDING"
    GENERATING = "GENERATING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class VerificationStatus(StrEnum):
    """What the Work's own checks said of it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PASSED = "PASSED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class CheckpointStatus(StrEnum):
    """Whether the point to return to after a Work exists."""

    PENDING = "PENDING"
    TAKING = "TAKING"
    TAKEN = "TAKEN"
    FAILED = "FAILED"


class WorkTreeStatus(StrEnum):
    """Where the checkout of one repository stands."""

    PENDING = "PENDING"
    CREATING = "CREATING"
    READY = "READY"
    FAILED = "FAILED"
    PENDING_RELEASE = "PENDING_RELEASE"
    RELEASED = "RELEASED"


class StatusMachine(Generic[S]):
    """The states of one kind of thing, and from each the states that can follow."""

    def __init__(self, name: str, states: type[S], arrows: Mapping[S, str]) -> None:
        self.name = name
        self.states = frozenset(states)
        self.arrows = {state: frozenset(states(to) for to in arrows.get(state, "").split()) for state in states}

    @property
    def final(self) -> frozenset[S]:
        """Return the states that nothing leaves."""
        return frozenset(state for state, following in self.arrows.items() if not following)

    def check(self, thing: str, state: S, to: S) -> None:
        """Refuse a move for which the table has no arrow."""
        if to not in self.arrows[state]:
            raise IllegalTransition(f"{self.name} {thing}", state, f"it cannot become {to}", self.arrows[state])


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
    """Return what a person may ask of a Workflow in this state."""
    # Only the engine places.
    return [operation for operation, states in OPERATIONS.items() if status in states and operation != "place"]
