"""The Workflow: one run, stored as one record with all its parts."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from kingdom.bus.record import read_document
from kingdom.errors import IllegalTransition, NotFound
from kingdom.workflow.model.messages.events import WorkflowTemplateCreated
from kingdom.workflow.model.references import GitRef, McpServerRef, SessionRef, merge_refs
from kingdom.workflow.model.resources.template import RunPolicy, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.status import (
    OPERATIONS,
    WORKFLOW,
    CheckpointStatus,
    StatusMachine,
    VerificationStatus,
    WorkflowStatus,
    WorkTreeStatus,
    allowed_operations,
)

# The id of a General's run is this prefix and the id of its assignment.
RUN_PREFIX = "wf-"
_SLUG_LENGTH_MAX = 40
# Rounding to this many digits removes the float error of sums.
_USD_DIGITS = 6


class Placement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The host of a run. The epoch grows with every placement, so stale answers can be recognized."""

    host: str
    epoch: int


class StopOutcome(StrEnum):
    """The outcome of a run that is being stopped. A later member of this enum overrules an earlier one."""

    AWAIT = "AWAIT"
    PAUSE = "PAUSE"
    FAIL = "FAIL"
    CANCEL = "CANCEL"

    @property
    def verb(self) -> str:
        """Return what the run is about to do, in words for people."""
        return {"AWAIT": "wait", "CANCEL": "be cancelled"}.get(self, self.lower())

    def overrules(self, other: "StopOutcome") -> bool:
        """Return whether this outcome replaces another one."""
        order = list(StopOutcome)
        return order.index(self) > order.index(other)


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The requested outcome of a stop, and the reason for it."""

    outcome: StopOutcome = msgspec.field(name="wish")
    reason: str


class QuestionTopic(StrEnum):
    """The topic of a question: the agent's own question, more budget, or an agent in a loop."""

    AGENT = "AGENT"
    BUDGET = "BUDGET"
    LOOP = "LOOP"


# The choices of a question that comes from the engine and not from the agent.
GO_ON, STOP = "go on", "stop"


class RunQuestion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A question to a person. The run waits for the reply."""

    task_id: str
    text: str
    choices: tuple[str, ...] = ()
    topic: QuestionTopic = msgspec.field(name="about", default=QuestionTopic.AGENT)

    def is_ended_by(self, reply: str) -> bool:
        """Return whether this reply to a question of the engine ends the run."""
        return self.topic is not QuestionTopic.AGENT and reply.strip().lower() == STOP


class Resumption(msgspec.Struct, kw_only=True, rename="camel"):
    """What remains to be done before a resumed run continues.

    If `rolls_back`, the checkouts are rolled back to a checkpoint, or to their base if there is no `checkpoint_id`.
    `in_flight` is true while the host rolls them back.
    """

    rolls_back: bool
    checkpoint_id: str | None = None
    in_flight: bool = False


class Workflow(msgspec.Struct, kw_only=True, rename="camel"):
    """One run. Only the modules of `model.steps` change it."""

    machine: ClassVar[StatusMachine[Any]] = WORKFLOW

    id: str
    name: str
    works: list[Work]
    created_at: datetime
    description: str = ""
    # The requester of the run. It gets the events of its runs in a separate stream.
    requester: str = msgspec.field(name="asker", default="")
    # The General that started the run. Empty for a run that a person started.
    general: str = ""
    git_refs: tuple[GitRef, ...] = ()
    mcp_server_refs: tuple[McpServerRef, ...] = ()
    policy: RunPolicy = RunPolicy()
    status: WorkflowStatus = WorkflowStatus.CREATED
    stop_request: StopRequest | None = msgspec.field(name="wanted", default=None)
    reason: str = ""
    placement: Placement | None = None
    starts_when_ready: bool = False
    # The Work that waits for approval by a person.
    work_to_approve_id: str | None = msgspec.field(name="gate", default=None)
    question: RunQuestion | None = None
    resumption: Resumption | None = None
    # The vendor of the model rejects requests until this time. The run then continues by itself.
    parked_until: datetime | None = None
    # The total budget of the run. It grows with every grant by a person.
    budget_usd: float | None = None
    # The cost of Works that were removed from the run.
    removed_cost_usd: float = 0.0
    # The checkouts and sessions were lost with the host, so the run can continue only from a checkpoint or its base.
    host_data_lost: bool = msgspec.field(name="uprooted", default=False)
    # How often the host was lost while an agent ran. A completed Task, or a resume operation, resets the number.
    losses_without_progress: int = msgspec.field(name="fruitlessLosses", default=0)
    # The session of an earlier run with which the first Work goes on if it still exists.
    earlier_session: SessionRef | None = msgspec.field(name="continues", default=None)
    # The run that goes on with the session of this run.
    continued_by: str = ""
    # The files of the run are needed until this time, even if the run ends earlier.
    kept_until: datetime | None = None
    work_trees: list[WorkTree] = []
    checkpoints: list[Checkpoint] = []
    works_created: int = msgspec.field(name="worksMade", default=0)
    # How many commands the host has got to create checkouts, and to roll them back.
    preparations: int = 0
    roll_backs: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def assignment_id(self) -> str:
        """Return the id of the assignment that the run carries out, or "" for a run that a person started."""
        return self.id.removeprefix(RUN_PREFIX) if self.general else ""

    @property
    def waits_for_people(self) -> bool:
        """Return whether the run waits for an answer or an approval."""
        return self.status is WorkflowStatus.AWAITING and not self.parked_until

    @classmethod
    def copied_from(
        cls,
        template: WorkflowTemplate,
        workflow_id: str,
        at: datetime,
        *,
        name: str = "",
        requester: str = "",
        general: str = "",
    ) -> "Workflow":
        """Return a new Workflow with a copy of the template. Later changes of the template do not change this copy."""
        workflow = cls(
            id=workflow_id,
            name=name or template.name,
            requester=requester,
            general=general,
            description=template.description,
            git_refs=template.git_refs,
            mcp_server_refs=template.mcp_server_refs,
            policy=template.policy,
            budget_usd=template.policy.budget_usd,
            works=[],
            created_at=at,
        )
        workflow.works.extend(workflow.new_work(definition) for definition in template.works)
        for ref in workflow.all_git_refs():
            workflow.add_tree(ref)
        return workflow

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Workflow":
        """Return the Workflow of a stored document; raise Unreadable if it is invalid."""
        return read_document(document, cls)

    def document(self) -> dict[str, Any]:
        """Return the JSON document to store."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    def as_template(self, template_id: str, name: str) -> tuple[WorkflowTemplate, WorkflowTemplateCreated]:
        """Return a template with the definitions of this run."""
        template = WorkflowTemplate(
            id=template_id,
            name=name,
            description=self.description,
            works=tuple(work.definition for work in self.works),
            git_refs=self.git_refs,
            mcp_server_refs=self.mcp_server_refs,
            policy=self.policy,
        )
        return template, template.created_event()

    def require_allowed(self, operation: str) -> None:
        """Refuse an operation that the state does not allow."""
        if self.deleted_at:
            raise IllegalTransition(f"workflow {self.id}", "DELETED", f"cannot {operation} it", ())
        if self.status not in OPERATIONS[operation]:
            raise IllegalTransition(
                f"workflow {self.id}", self.status, f"cannot {operation} it", allowed_operations(self.status)
            )

    @property
    def current_work(self) -> Work | None:
        """Return the first Work that is not finished."""
        return next((work for work in self.works if not work.is_finished), None)

    @property
    def cost_usd(self) -> float:
        """Return the cost of the run's agents so far."""
        return self.removed_cost_usd + sum(work.cost_usd for work in self.works)

    @property
    def remaining_usd(self) -> float | None:
        """Return the rest of the budget, or None without a budget."""
        if self.budget_usd is None:
            return None
        return max(round(self.budget_usd - self.cost_usd, _USD_DIGITS), 0.0)

    @property
    def is_over_budget(self) -> bool:
        """Return whether the budget is used up."""
        return self.remaining_usd == 0

    @property
    def grant_usd(self) -> float:
        """Return the amount of one grant by a person: the initial budget."""
        return self.policy.budget_usd or 0.0

    @property
    def is_idle(self) -> bool:
        """Return whether the host has answered every command whose answer can change the status of the run."""
        rolling = self.resumption is not None and self.resumption.in_flight
        creating = any(tree.status is WorkTreeStatus.CREATING for tree in self.work_trees)
        return not (rolling or creating or any(_is_busy(work) for work in self.works))

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended for good or is deleted."""
        return self.status in self.machine.final or self.deleted_at is not None

    @property
    def needed_until(self) -> datetime | None:
        """Return when the files of the run are no longer needed, or None if the run has not ended."""
        ended_at = self.ended_at or self.deleted_at
        return max(ended_at, self.kept_until or ended_at) if ended_at else None

    @property
    def uses_resources(self) -> bool:
        """Return whether the run prevents the deletion of its repositories and MCP servers.

        A failed run does not prevent the deletion. When the run is resumed, its resources are checked again.
        """
        unused = {WorkflowStatus.CREATED, WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
        return self.status not in unused and self.deleted_at is None

    def find_work(self, work_id: str) -> Work | None:
        """Return a Work by its id."""
        return next((work for work in self.works if work.id == work_id), None)

    def find_tree(self, tree_id: str) -> WorkTree | None:
        """Return a WorkTree by its id."""
        return next((tree for tree in self.work_trees if tree.id == tree_id), None)

    def valid_checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that the run can be rolled back to, oldest first."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.is_valid(self.works)]

    def valid_checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint by its id. Raise NotFound if the run cannot be rolled back to it."""
        valid = {checkpoint.id: checkpoint for checkpoint in self.valid_checkpoints()}
        if checkpoint_id not in valid:
            choice = ", ".join(valid) or "none, resume from base"
            raise NotFound(f"workflow {self.id} has no valid checkpoint {checkpoint_id!r}; valid are: {choice}")
        return valid[checkpoint_id]

    def works_after(self, checkpoint: Checkpoint | None) -> list[Work]:
        """Return the Works that a rollback to a checkpoint undoes. Without a checkpoint these are all Works."""
        if checkpoint is None:
            return list(self.works)
        index = next(index for index, work in enumerate(self.works) if work.id == checkpoint.work_id)
        return self.works[index + 1 :]

    def git_refs_of(self, definition: WorkDefinition) -> tuple[GitRef, ...]:
        """Return the repositories of one Work: its own references and those of the Workflow, merged."""
        return merge_refs(self.git_refs, definition.git_refs)

    def mcp_server_refs_of(self, definition: WorkDefinition) -> tuple[McpServerRef, ...]:
        """Return the MCP servers of one Work: its own references and those of the Workflow, merged."""
        return merge_refs(self.mcp_server_refs, definition.mcp_server_refs)

    def all_git_refs(self) -> tuple[GitRef, ...]:
        """Return every repository and base branch that a Work uses, without duplicates."""
        refs = (ref for work in self.works for ref in self.git_refs_of(work.definition))
        return tuple(dict.fromkeys(refs))

    def git_ids(self) -> tuple[str, ...]:
        """Return the sorted ids of the registered repositories that the run uses."""
        lists = (self.git_refs, *(work.definition.git_refs for work in self.works)) if self.works else ()
        return tuple(sorted({ref.git_id for refs in lists for ref in refs}))

    def all_mcp_server_refs(self) -> tuple[McpServerRef, ...]:
        """Return every MCP server reference that a Work uses, without duplicates."""
        found: list[McpServerRef] = []
        for work in self.works:
            found += [ref for ref in self.mcp_server_refs_of(work.definition) if ref not in found]
        return tuple(found)

    def mcp_server_ids(self) -> tuple[str, ...]:
        """Return the sorted ids of the McpServers that the run uses."""
        return tuple(sorted({ref.mcp_server_id for ref in self.all_mcp_server_refs()}))

    def trees_of(self, work: Work) -> list[WorkTree]:
        """Return the checkouts that a Work runs in."""
        refs = self.git_refs_of(work.definition)
        return [tree for tree in self.work_trees if tree.is_wanted and tree.ref in refs]

    def report_paths_before(self, work: Work) -> Iterator[str]:
        """Yield the paths of the reports that an agent of this Work may read: those of this and of earlier Works."""
        for earlier in self.works[: self.works.index(work) + 1]:
            yield from (task.report.file_path for task in earlier.tasks if task.report.file_path)

    def new_work(self, definition: WorkDefinition) -> Work:
        """Return a Work with an id that was never used before."""
        self.works_created += 1
        return Work.of(f"{self.id}-w{self.works_created}", definition)

    def add_tree(self, ref: GitRef) -> None:
        """Add a planned checkout with a branch that no earlier checkout of the repository used."""
        number = len(self.work_trees) + 1
        is_second = any(tree.ref.git_id == ref.git_id for tree in self.work_trees)
        branch = f"kingdom/{self.id}/{_slug(self.name)}" + (f"-{number}" if is_second else "")
        self.work_trees.append(WorkTree(id=f"{self.id}-tree{number}", ref=ref, branch=branch))


def format_usd(amount: float) -> str:
    """Return an amount as text, with cents, or with more digits if it is below one dollar and has parts of a cent."""
    return f"${amount:.2f}" if amount >= 1 or round(amount, 2) == amount else f"${amount:.4g}"


def _is_busy(work: Work) -> bool:
    """Return whether a host may still be working on a Work."""
    return (
        work.agent.alive
        or work.verification.status is VerificationStatus.RUNNING
        or work.checkpointing.status is CheckpointStatus.TAKING
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_SLUG_LENGTH_MAX].strip("-") or "run"
