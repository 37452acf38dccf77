"""One step of a run: what it changes, what it says, what it commands. The time is given, never looked up."""

from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

from kingdom.errors import IllegalTransition
from kingdom.workflow.model.messages.answers import HostAnswer
from kingdom.workflow.model.messages.commands import HostCommand
from kingdom.workflow.model.messages.events import DomainEvent, WorkflowStatusChanged, WorkStatusChanged
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORK, StatusMachine, WorkflowStatus

_C = TypeVar("_C", bound=HostCommand)
# In these states what went wrong before is past.
_SOUND = frozenset({"RUNNING", "READY", "RESPONDED", "COMPLETED", "PASSED", "TAKEN"})


class HasStatus(Protocol):
    """Anything with a status machine."""

    machine: ClassVar[StatusMachine[Any]]
    status: Any


class Step:
    """Changes one Workflow and collects what follows; the caller stores and publishes all of it, or nothing.

    `ignored` tells why an answer changed nothing: it came late, twice, or from a host that lost the run.
    """

    def __init__(self, workflow: Workflow, *, at: datetime) -> None:
        self.workflow = workflow
        self.at = at
        self.events: list[DomainEvent] = []
        self.commands: list[HostCommand] = []
        self.ignored: str | None = None

    def say(self, *events: DomainEvent) -> None:
        """Add events, in the order in which they happened."""
        self.events.extend(events)

    def command(self, kind: type[_C], attempt: int, **fields: Any) -> None:
        """Tell the host of the run to do something."""
        placement = self.workflow.placement
        if placement is None:
            raise IllegalTransition(f"workflow {self.workflow.id}", "without a host", "nothing can be done", ("place",))
        fields |= {"workflow_id": self.workflow.id, "host": placement.host, "epoch": placement.epoch}
        self.commands.append(kind(attempt=attempt, **fields))

    def move(self, thing: HasStatus, to: Any, of: str) -> None:
        """Change a status along its machine; `of` names the thing where that is not possible."""
        thing.machine.check(of, thing.status, to)
        thing.status = to
        if to in _SOUND and hasattr(thing, "error"):
            thing.error = ""

    def become(self, status: WorkflowStatus) -> None:
        """Change the status of the Workflow."""
        self.move(self.workflow, status, self.workflow.id)
        self.say(WorkflowStatusChanged(workflow_id=self.workflow.id, status=status))

    def derive(self) -> None:
        """Bring the status of every Work in line with its parts, and say what changed."""
        for work in self.workflow.works:
            if work.status is not (derived := work.derived_status):
                WORK.check(work.id, work.status, derived)
                work.status = derived
                self.say(WorkStatusChanged(work_id=work.id, workflow_id=self.workflow.id, status=derived))

    def ignore(self, reason: str) -> None:
        """Note why an answer changes nothing."""
        self.ignored = reason

    def is_late(self, answer: HostAnswer, what: str, attempt: int | None, status: str, *, awaited: bool) -> bool:
        """Tell whether an answer does not count, and note why; `attempt` is None for a thing that is gone."""
        placement = self.workflow.placement
        if placement is None or (answer.host, answer.epoch) != (placement.host, placement.epoch):
            now = f"{placement.host}, epoch {placement.epoch}" if placement else "nowhere"
            self.ignore(f"{answer.host}, epoch {answer.epoch} lost the run, which is placed on {now}")
        elif attempt is None:
            self.ignore(f"the run has no {what} any more")
        elif answer.attempt != attempt:
            self.ignore(f"attempt {answer.attempt} of {what} is over, {attempt} is current")
        elif not awaited:
            self.ignore(f"{what} is {status} and awaits no such answer")
        return self.ignored is not None
