"""One agent session of a run with its parts: Tasks with Query and Report, the agent, the checks, the checkpoint."""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.status import (
    AGENT,
    CHECKPOINT,
    QUERY,
    REPORT,
    VERIFICATION,
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    ReportStatus,
    StatusMachine,
    TaskStatus,
    VerificationStatus,
    WorkStatus,
)


class WorkPart(msgspec.Struct, kw_only=True, rename="camel"):
    """A part with a status machine; `attempt` counts the commands about it and never goes back."""

    machine: ClassVar[StatusMachine[Any]]

    attempt: int = 0
    error: str = ""


class TaskQuery(WorkPart, kw_only=True):
    """A prompt; `response` refers to the file with the answer."""

    machine = QUERY

    status: QueryStatus = QueryStatus.PENDING
    response: str = ""
    # An earlier attempt has begun the work in this session, so the next one goes on with it.
    begun: bool = False
    # What a person answered to a question of the agent; goes along with every attempt.
    reply: str = ""
    # The host was asked what became of this attempt.
    reconciling: bool = False
    # A person was asked about it because the agent went in circles.
    looped: bool = False


class TaskReport(WorkPart, kw_only=True):
    """The document that a Task leaves; `versions` are those of rounds that were rolled back."""

    machine = REPORT

    id: str
    status: ReportStatus
    file_path: str = ""
    versions: list[str] = []


class Task(msgspec.Struct, kw_only=True, rename="camel"):
    """One step of a session."""

    id: str
    definition: TaskDefinition
    query: TaskQuery
    report: TaskReport
    # How often it was parked since its agent last answered, or a person was last asked about that.
    parkings: int = 0

    @classmethod
    def of(cls, task_id: str, definition: TaskDefinition) -> "Task":
        """Return a Task that has not started."""
        status = ReportStatus.PENDING if definition.report_outline else ReportStatus.NOT_REQUIRED
        report = TaskReport(id=f"{task_id}-report", status=status)
        return cls(id=task_id, definition=definition, query=TaskQuery(), report=report)

    @property
    def status(self) -> TaskStatus:
        """Return the status that query and report amount to."""
        if QueryStatus.CANCELLED is self.query.status or ReportStatus.CANCELLED is self.report.status:
            return TaskStatus.CANCELLED
        if QueryStatus.FAILED is self.query.status or ReportStatus.FAILED is self.report.status:
            return TaskStatus.FAILED
        if self.query.status is QueryStatus.PENDING:
            return TaskStatus.PENDING
        reported = self.report.status in {ReportStatus.NOT_REQUIRED, ReportStatus.COMPLETED}
        responded = self.query.status is QueryStatus.RESPONDED
        return TaskStatus.COMPLETED if responded and reported else TaskStatus.RUNNING

    @property
    def needs_turn(self) -> bool:
        """Tell whether the next thing to do for it is a turn of the agent."""
        reports = self.query.status is QueryStatus.RESPONDED and self.report.status is ReportStatus.PENDING
        return self.query.status is QueryStatus.PENDING or reports


class StopKind(StrEnum):
    """How hard an agent was asked to end."""

    STOP = "STOP"
    INTERRUPT = "INTERRUPT"


class WorkAgent(WorkPart, kw_only=True):
    """The process behind a Work; `session` is what its conversation is continued by."""

    machine = AGENT

    status: AgentStatus = AgentStatus.IDLE
    session: str | None = None
    pid: int | None = None
    stopping: StopKind | None = None

    @property
    def alive(self) -> bool:
        """Tell whether a process may run."""
        return self.status in {AgentStatus.STARTING, AgentStatus.RUNNING}


def soldier_of(session: str) -> str:
    """Return who a session belongs to, as its token tells."""
    return session.partition("/")[0]


def session_of(session: str) -> str:
    """Return the agent's own name for a session, as its token tells."""
    return session.partition("/")[2]


class Verification(WorkPart, kw_only=True):
    """The Work's own checks."""

    machine = VERIFICATION

    status: VerificationStatus = VerificationStatus.PENDING


class Checkpointing(WorkPart, kw_only=True):
    """The making of the point to return to after a Work."""

    machine = CHECKPOINT

    status: CheckpointStatus = CheckpointStatus.PENDING
    checkpoint_id: str | None = None


class AgentPetition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An output that an agent requests and others decide on and perform."""

    id: str
    task_id: str
    kind: str
    body: dict[str, Any]


class Work(msgspec.Struct, kw_only=True, rename="camel"):
    """One agent session; `status` is what its parts amounted to when it was last looked at."""

    id: str
    definition: WorkDefinition
    tasks: list[Task] = []
    tasks_made: int = 0
    status: WorkStatus = WorkStatus.PENDING
    agent: WorkAgent = msgspec.field(default_factory=WorkAgent)
    verification: Verification = msgspec.field(default_factory=Verification)
    checkpointing: Checkpointing = msgspec.field(default_factory=Checkpointing)
    work_space_id: str | None = None
    petitions: list[AgentPetition] = []
    # What the agent reported of it, as it wrote it.
    result: dict[str, Any] | None = None
    # How often it failed since a person last looked at it.
    failures: int = 0
    approved: bool = False
    cost_usd: float = 0.0
    # What each turn has cost as far as anybody told, so that nothing is counted twice.
    turn_costs: dict[str, float] = {}
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @classmethod
    def of(cls, work_id: str, definition: WorkDefinition) -> "Work":
        """Return a Work that has not started."""
        work = cls(id=work_id, definition=definition)
        for task in definition.tasks:
            work.add_task(task)
        return work

    def add_task(self, definition: TaskDefinition) -> None:
        """Append a Task under an id that was never used before."""
        self.tasks_made += 1
        self.tasks.append(Task.of(f"{self.id}-t{self.tasks_made}", definition))

    def count_cost(self, turn: str, cost_usd: float) -> None:
        """Count what a turn has cost in all, however often and in whatever order that is told."""
        more = cost_usd - self.turn_costs.get(turn, 0.0)
        if more > 0:
            self.turn_costs[turn] = cost_usd
            self.cost_usd += more

    @property
    def derived_status(self) -> WorkStatus:
        """Return the status that the parts amount to now."""
        if self.verification.status is VerificationStatus.CANCELLED:
            return WorkStatus.CANCELLED
        if self.verification.status is VerificationStatus.PASSED:
            return WorkStatus.COMPLETED
        if (
            self.agent.status is AgentStatus.ERROR
            or self.verification.status is VerificationStatus.FAILED
            or any(task.status is TaskStatus.FAILED for task in self.tasks)
        ):
            return WorkStatus.FAILED
        if self.agent.status is AgentStatus.STOPPED:
            return WorkStatus.PAUSED
        return WorkStatus.RUNNING if self.agent.status is AgentStatus.RUNNING else WorkStatus.PENDING

    @property
    def has_started(self) -> bool:
        """Tell whether its definition is settled because an agent was started on it."""
        return self.agent.status is not AgentStatus.IDLE

    @property
    def is_finished(self) -> bool:
        """Tell whether it is completed and one can return to the point after it."""
        return self.checkpointing.status is CheckpointStatus.TAKEN

    @property
    def is_finishing(self) -> bool:
        """Tell whether only its checks and its checkpoint are left, which a pause waits for."""
        verified = self.verification.status in {VerificationStatus.RUNNING, VerificationStatus.PASSED}
        return verified and not self.is_finished

    @property
    def current_task(self) -> Task | None:
        """Return the first Task that is not completed."""
        return next((task for task in self.tasks if task.status is not TaskStatus.COMPLETED), None)

    def find_task(self, task_id: str) -> Task | None:
        """Return a Task by its id."""
        return next((task for task in self.tasks if task.id == task_id), None)

    def parts(self) -> Iterator[WorkPart]:
        """Yield everything in it that has a status machine."""
        yield from (self.agent, self.verification, self.checkpointing)
        for task in self.tasks:
            yield from (task.query, task.report)
