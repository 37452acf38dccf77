"""What a run is made from: definitions that never change once written, and the template that holds them."""

from enum import StrEnum

import msgspec

from kingdom.errors import IllegalTransition, Misconfigured
from kingdom.workflow.model.messages.events import (
    WorkflowTemplateCreated,
    WorkflowTemplateDeleted,
    WorkflowTemplateUpdated,
)
from kingdom.workflow.model.references import GitRef, McpServerRef, refuse_duplicates


class ReportSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One heading that a report shall have, and what belongs under it."""

    title: str
    description: str = ""


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step: a prompt, and the outline of the document that it shall leave, if any."""

    query: str
    report_outline: tuple[ReportSection, ...] = ()
    timeout_seconds: int | None = None


class WorkDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One agent session: its steps in order, its model, its resources, its checks.

    `verify` are commands that must succeed before the Work counts; `pause_after` asks a person before the next one.
    `instructions` is what the agent shall know beside its prompts.
    """

    name: str
    tasks: tuple[TaskDefinition, ...]
    instructions: str = ""
    model: str = ""
    git_refs: tuple[GitRef, ...] = ()
    mcp_server_refs: tuple[McpServerRef, ...] = ()
    verify: tuple[str, ...] = ()
    pause_after: bool = False
    timeout_seconds: int | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise Misconfigured(f"work {self.name!r} has no task: give it at least one query")
        refuse_duplicates(self.git_refs, self.mcp_server_refs)


class OverBudget(StrEnum):
    """What becomes of a run that has cost what it may: a person is asked for more, or it fails."""

    ASK = "ask"
    STOP = "stop"


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What may be done without asking: how many failures of one Work are met with another attempt, and the money."""

    retries: int = 0
    budget_usd: float | None = None
    over_budget: OverBudget = OverBudget.ASK


class WorkflowTemplate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A workflow to be: copied into every Workflow made from it, and never looked at again by them."""

    id: str
    name: str
    works: tuple[WorkDefinition, ...]
    description: str = ""
    git_refs: tuple[GitRef, ...] = ()
    mcp_server_refs: tuple[McpServerRef, ...] = ()
    policy: RunPolicy = RunPolicy()
    deleted: bool = False

    def __post_init__(self) -> None:
        if not self.works:
            raise Misconfigured(f"template {self.name!r} has no work: give it at least one")
        refuse_duplicates(self.git_refs, self.mcp_server_refs)

    def git_ids(self) -> tuple[str, ...]:
        """Return the Gits that it refers to, sorted."""
        refs = [*self.git_refs, *(ref for work in self.works for ref in work.git_refs)]
        return tuple(sorted({ref.git_id for ref in refs}))

    def created(self) -> WorkflowTemplateCreated:
        """Return what is said once a new template is stored."""
        return WorkflowTemplateCreated(template_id=self.id)

    def update(self, definition: "WorkflowTemplate") -> tuple["WorkflowTemplate", WorkflowTemplateUpdated]:
        """Return the template with the content of another; Workflows made before stay as they are."""
        self._refuse_if_deleted("update")
        return msgspec.structs.replace(definition, id=self.id), WorkflowTemplateUpdated(template_id=self.id)

    def delete(self) -> tuple["WorkflowTemplate", WorkflowTemplateDeleted]:
        """Return the template as deleted."""
        self._refuse_if_deleted("delete")
        return msgspec.structs.replace(self, deleted=True), WorkflowTemplateDeleted(template_id=self.id)

    def without_git(self, git_id: str) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        """Return the template with every reference to a deleted Git taken out; None when there was none."""
        return self._cascaded(
            git_refs=tuple(ref for ref in self.git_refs if ref.git_id != git_id),
            works=tuple(
                msgspec.structs.replace(work, git_refs=tuple(ref for ref in work.git_refs if ref.git_id != git_id))
                for work in self.works
            ),
        )

    def without_mcp_server(self, mcp_server_id: str) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        """Return the template with every reference to an unregistered McpServer taken out; None when there was none."""

        def kept(refs: tuple[McpServerRef, ...]) -> tuple[McpServerRef, ...]:
            return tuple(ref for ref in refs if ref.mcp_server_id != mcp_server_id)

        return self._cascaded(
            mcp_server_refs=kept(self.mcp_server_refs),
            works=tuple(
                msgspec.structs.replace(work, mcp_server_refs=kept(work.mcp_server_refs)) for work in self.works
            ),
        )

    def _cascaded(self, **changes: object) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        changed = msgspec.structs.replace(self, **changes)
        return changed, None if changed == self else WorkflowTemplateUpdated(template_id=self.id)

    def _refuse_if_deleted(self, operation: str) -> None:
        if self.deleted:
            raise IllegalTransition(f"template {self.id}", "DELETED", f"cannot {operation} it", ())
