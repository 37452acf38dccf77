"""One step of a run: its changes, its events and its commands. The caller provides the current time."""

from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.answers import HostAnswer
from kingdom.workflow.model.messages.commands import HostCommand
from kingdom.workflow.model.messages.events import DomainEvent, WorkflowStatusChanged, WorkStatusChanged
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORK, StatusMachine, WorkflowStatus

_C = TypeVar("_C", bound=HostCommand)
# When a part reaches one of these states, its earlier error is cleared.
_HEALTHY = frozenset({"RUNNING", "READY", "RESPONDED", "COMPLETED", "PASSED", "TAKEN"})

# Parts of the reasons why a stale answer is ignored.
LOST, OVER, UNEXPECTED = "lost the run", "is over", "does not expect this answer"


class HasStatus(Protocol):
    """A part of a run with a status machine."""

    machine: ClassVar[StatusMachine[Any]]
    status: Any


class Step:
    """Changes one Workflow and collects events and commands. The caller stores the results in one transaction.

    `ignored` is the reason why an answer or a request changed nothing, or None. For example, an answer is ignored if it
    is late, repeated, or from a host that lost the run.
    """

    def __init__(self, workflow: Workflow, *, at: datetime) -> None:
        self.workflow = workflow
        self.at = at
        self.events: list[DomainEvent] = []
        self.commands: list[HostCommand] = []
        self.ignored: str | None = None

    def emit(self, *events: DomainEvent) -> None:
        """Add events in the order in which they happened."""
        self.events.extend(events)

    def send(self, kind: type[_C], attempt: int, **fields: Any) -> None:
        """Send a command to the host of the run."""
        placement = self.workflow.placement
        if placement is None:
            raise IllegalTransition(
                f"workflow {self.workflow.id}", "without a host", "no command can be sent", ("place",)
            )
        fields |= {"workflow_id": self.workflow.id, "host": placement.host, "epoch": placement.epoch}
        self.commands.append(kind(attempt=attempt, **fields))

    def transition(self, part: HasStatus, to: Any, part_id: str) -> None:
        """Change the status of a part; raise IllegalTransition if its status machine does not allow it."""
        part.machine.check(part_id, part.status, to)
        part.status = to
        if to in _HEALTHY and hasattr(part, "error"):
            part.error = ""

    def set_status(self, status: WorkflowStatus) -> None:
        """Change the status of the Workflow."""
        self.transition(self.workflow, status, self.workflow.id)
        self.emit(WorkflowStatusChanged(workflow_id=self.workflow.id, status=status))

    def update_work_statuses(self) -> None:
        """Derive the status of every Work from its parts, and emit an event for each change."""
        for work in self.workflow.works:
            if work.status is not (derived := work.derived_status):
                WORK.check(work.id, work.status, derived)
                work.status = derived
                self.emit(WorkStatusChanged(work_id=work.id, workflow_id=self.workflow.id, status=derived))

    def ignore(self, reason: str) -> None:
        """Record why an answer or a request changes nothing."""
        self.ignored = reason

    def ignore_if_stale(
        self, answer: HostAnswer, part_name: str, attempt: int | None, status: str, *, awaited: bool
    ) -> bool:
        """Record why an answer is out of date, and return whether it is.

        `attempt` and `status` belong to the part of the run that the answer is for. `attempt` is None if that part no
        longer exists. `awaited` tells whether the part waits for this kind of answer.
        """
        placement = self.workflow.placement
        if placement is None or (answer.host, answer.epoch) != (placement.host, placement.epoch):
            now = f"{placement.host}, epoch {placement.epoch}" if placement else "nowhere"
            self.ignore(f"{answer.host}, epoch {answer.epoch} {LOST}, which is placed on {now}")
        elif attempt is None:
            self.ignore(f"the run no longer has a {part_name}")
        elif answer.attempt != attempt:
            self.ignore(f"attempt {answer.attempt} of {part_name} {OVER}, {attempt} is current")
        elif not awaited:
            self.ignore(f"{part_name} is {status} and {UNEXPECTED}")
        return self.ignored is not None
