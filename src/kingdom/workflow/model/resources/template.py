"""Templates of runs: immutable definitions of Works and Tasks."""

from enum import StrEnum

import msgspec

from kingdom.errors import IllegalTransition, Misconfigured
from kingdom.workflow.model.messages.events import (
    WorkflowTemplateCreated,
    WorkflowTemplateDeleted,
    WorkflowTemplateUpdated,
)
from kingdom.workflow.model.references import GitRef, McpServerRef, refuse_duplicates
from kingdom.workflow.model.report_outline import ReportSection


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A prompt, and the outline of the report that the agent writes, if any."""

    query: str
    report_outline: tuple[ReportSection, ...] = ()
    timeout_seconds: int | None = None


class WorkDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One agent session: its Tasks in order, its model, its resources and its checks.

    `verify` lists commands that must succeed before the Work is complete. `pause_after` asks a person before the next
    Work. `instructions` is text for the agent in addition to its prompts.
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
    """What happens when a run has used up its budget: a person is asked for more, or the run fails."""

    ASK = "ask"
    STOP = "stop"


class RunPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits of a run: the number of retries per Work, and the budget."""

    retries: int = 0
    budget_usd: float | None = None
    over_budget: OverBudget = OverBudget.ASK


class WorkflowTemplate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A template. Every Workflow has its own copy, so later changes of the template do not affect the Workflow."""

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
        """Return the sorted ids of the Gits that the template refers to."""
        refs = [*self.git_refs, *(ref for work in self.works for ref in work.git_refs)]
        return tuple(sorted({ref.git_id for ref in refs}))

    def created_event(self) -> WorkflowTemplateCreated:
        """Return the event of a new template."""
        return WorkflowTemplateCreated(template_id=self.id)

    def update(self, definition: "WorkflowTemplate") -> tuple["WorkflowTemplate", WorkflowTemplateUpdated]:
        """Return the template with new content. Existing Workflows do not change."""
        self._refuse_if_deleted("update")
        return msgspec.structs.replace(definition, id=self.id), WorkflowTemplateUpdated(template_id=self.id)

    def delete(self) -> tuple["WorkflowTemplate", WorkflowTemplateDeleted]:
        """Return the template as deleted."""
        self._refuse_if_deleted("delete")
        return msgspec.structs.replace(self, deleted=True), WorkflowTemplateDeleted(template_id=self.id)

    def without_git(self, git_id: str) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        """Return the template without references to a Git, and the event; None if nothing changed."""
        return self._changed(
            git_refs=tuple(ref for ref in self.git_refs if ref.git_id != git_id),
            works=tuple(
                msgspec.structs.replace(work, git_refs=tuple(ref for ref in work.git_refs if ref.git_id != git_id))
                for work in self.works
            ),
        )

    def without_mcp_server(self, mcp_server_id: str) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        """Return the template without references to an McpServer, and the event; None if nothing changed."""

        def without_server(refs: tuple[McpServerRef, ...]) -> tuple[McpServerRef, ...]:
            return tuple(ref for ref in refs if ref.mcp_server_id != mcp_server_id)

        return self._changed(
            mcp_server_refs=without_server(self.mcp_server_refs),
            works=tuple(
                msgspec.structs.replace(work, mcp_server_refs=without_server(work.mcp_server_refs))
                for work in self.works
            ),
        )

    def _changed(self, **changes: object) -> tuple["WorkflowTemplate", WorkflowTemplateUpdated | None]:
        changed = msgspec.structs.replace(self, **changes)
        return changed, None if changed == self else WorkflowTemplateUpdated(template_id=self.id)

    def _refuse_if_deleted(self, operation: str) -> None:
        if self.deleted:
            raise IllegalTransition(f"template {self.id}", "DELETED", f"cannot {operation} it", ())
