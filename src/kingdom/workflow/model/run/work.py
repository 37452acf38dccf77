"""A Work: one agent session of a run, with its Tasks, its agent, its checks and its checkpoint."""

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
    """A part of a Work with a status machine. `attempt` counts the commands for the part and never decreases."""

    machine: ClassVar[StatusMachine[Any]]

    attempt: int = 0
    error: str = ""


class TaskQuery(WorkPart, kw_only=True):
    """The prompt of a Task. `response` refers to the file with the answer."""

    machine = QUERY

    status: QueryStatus = QueryStatus.PENDING
    response: str = ""
    # Whether the agent has already started to work on the prompt in this session. The next attempt continues that turn.
    begun: bool = False
    # The last reply of a person. Every attempt includes it.
    reply: str = ""
    # Whether the host is looking up the result of this attempt in the transcript.
    reconciling: bool = False
    # Whether a person was already asked because the agent was in a loop.
    looped: bool = False


class TaskReport(WorkPart, kw_only=True):
    """The document that a Task produces. `versions` are the files of earlier reports that were rolled back."""

    machine = REPORT

    id: str
    status: ReportStatus
    file_path: str = ""
    versions: list[str] = []


class Task(msgspec.Struct, kw_only=True, rename="camel"):
    """One step of an agent session: a prompt and, if required, a report."""

    id: str
    definition: TaskDefinition
    query: TaskQuery
    report: TaskReport
    # The prompt if the agent goes on in the session of an earlier run. It can leave out what that session knows.
    continued_query: str = ""
    # How often a usage limit made the Task wait, since the last answer of the agent or the last question to a person.
    times_parked: int = msgspec.field(name="parkings", default=0)

    @classmethod
    def of(cls, task_id: str, definition: TaskDefinition) -> "Task":
        """Return a Task that has not started."""
        status = ReportStatus.PENDING if definition.report_outline else ReportStatus.NOT_REQUIRED
        report = TaskReport(id=f"{task_id}-report", status=status)
        return cls(id=task_id, definition=definition, query=TaskQuery(), report=report)

    @property
    def status(self) -> TaskStatus:
        """Return the status, derived from prompt and report."""
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
        """Return whether the Task needs a turn of the agent next."""
        reports = self.query.status is QueryStatus.RESPONDED and self.report.status is ReportStatus.PENDING
        return self.query.status is QueryStatus.PENDING or reports


class StopKind(StrEnum):
    """How an agent was asked to end: after its turn, or at once."""

    STOP = "STOP"
    INTERRUPT = "INTERRUPT"


class WorkAgent(WorkPart, kw_only=True):
    """The agent process of a Work. `session` is the token that continues its conversation."""

    machine = AGENT

    status: AgentStatus = AgentStatus.IDLE
    session: str | None = None
    pid: int | None = None
    stopping: StopKind | None = None
    # Whether the agent goes on in the session of an earlier run. None before the first start, or if the run has none.
    uses_earlier_session: bool | None = msgspec.field(name="continued", default=None)

    @property
    def alive(self) -> bool:
        """Return whether the agent process may be running."""
        return self.status in {AgentStatus.STARTING, AgentStatus.RUNNING}


# Every soldier id begins with this.
SOLDIER_PREFIX = "soldier-"


def soldier_of(session: str) -> str:
    """Return the soldier id in a session token, which is `soldier/session`."""
    return session.partition("/")[0]


def session_of(session: str) -> str:
    """Return the agent's own session id in a session token."""
    return session.partition("/")[2]


class Verification(WorkPart, kw_only=True):
    """The checks of a Work."""

    machine = VERIFICATION

    status: VerificationStatus = VerificationStatus.PENDING


class Checkpointing(WorkPart, kw_only=True):
    """The creation of the checkpoint after a Work."""

    machine = CHECKPOINT

    status: CheckpointStatus = CheckpointStatus.PENDING
    checkpoint_id: str | None = None


class AgentPetition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An action that an agent requests. The court decides on it and performs it."""

    id: str
    task_id: str
    kind: str
    body: dict[str, Any]


class Work(msgspec.Struct, kw_only=True, rename="camel"):
    """One agent session. `status` is the last stored value of `derived_status`."""

    id: str
    definition: WorkDefinition
    tasks: list[Task] = []
    tasks_created: int = msgspec.field(name="tasksMade", default=0)
    status: WorkStatus = WorkStatus.PENDING
    agent: WorkAgent = msgspec.field(default_factory=WorkAgent)
    verification: Verification = msgspec.field(default_factory=Verification)
    checkpointing: Checkpointing = msgspec.field(default_factory=Checkpointing)
    work_space_id: str | None = None
    petitions: list[AgentPetition] = []
    # The result document of the agent, unchanged.
    result: dict[str, Any] | None = None
    # The number of failures since the run was last resumed, by a person, its General or the engine.
    failures: int = 0
    approved: bool = False
    cost_usd: float = 0.0
    # The reported cost of each turn, so that no cost is counted twice.
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
        """Append a Task with an id that was never used before."""
        self.tasks_created += 1
        self.tasks.append(Task.of(f"{self.id}-t{self.tasks_created}", definition))

    def count_cost(self, turn: str, cost_usd: float) -> None:
        """Add the total cost of a turn. If the cost of a turn arrives several times, only the highest cost counts."""
        more = cost_usd - self.turn_costs.get(turn, 0.0)
        if more > 0:
            self.turn_costs[turn] = cost_usd
            self.cost_usd += more

    @property
    def derived_status(self) -> WorkStatus:
        """Return the current status, derived from the parts."""
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
        """Return whether an agent was started for this Work."""
        return self.agent.status is not AgentStatus.IDLE

    @property
    def is_finished(self) -> bool:
        """Return whether the Work is completed and has its checkpoint."""
        return self.checkpointing.status is CheckpointStatus.TAKEN

    @property
    def is_finishing(self) -> bool:
        """Return whether only the checks or the checkpoint remain. A pause waits until they are done."""
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
        """Yield every part with a status machine."""
        yield from (self.agent, self.verification, self.checkpointing)
        for task in self.tasks:
            yield from (task.query, task.report)
