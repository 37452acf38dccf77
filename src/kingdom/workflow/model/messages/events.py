"""Every domain event that the engine and people cause, under its name and with its payload; camelCase on the wire.

An event about a run is carried in an envelope whose aggregate id is the Workflow's, so payloads repeat it only where
the source document does. What soldier hosts say stands in `answers.py`, the whole catalogue in `catalogue.py`.
"""

from datetime import datetime

import msgspec

from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.status import WorkflowStatus, WorkStatus


class DomainEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that happened to a run or to what runs are made from."""


class GitCreated(DomainEvent, frozen=True, kw_only=True):
    """A repository became known."""

    git_id: str


class GitDeleted(DomainEvent, frozen=True, kw_only=True):
    """A repository is known no more."""

    git_id: str


class McpServerRegistered(DomainEvent, frozen=True, kw_only=True):
    """An MCP server became known."""

    mcp_server_id: str


class McpServerUnregistered(DomainEvent, frozen=True, kw_only=True):
    """An MCP server is known no more."""

    mcp_server_id: str


class HostRegistered(DomainEvent, frozen=True, kw_only=True):
    """A soldier host takes commands from now on; whatever ran on it under an earlier epoch is over."""

    host: str
    epoch: int
    slots: int


class HostLost(DomainEvent, frozen=True, kw_only=True):
    """A soldier host did not renew its lease: its agents are dead, and what it says no longer counts."""

    host: str
    epoch: int


class HostRunsLeft(DomainEvent, frozen=True, kw_only=True):
    """A soldier host has more runs than are displaced at once: those behind the run `after` are left."""

    host: str
    epoch: int
    reason: str
    after: str


class WorkflowTemplateCreated(DomainEvent, frozen=True, kw_only=True):
    """A template was written, or made from a Workflow."""

    template_id: str


class WorkflowTemplateUpdated(DomainEvent, frozen=True, kw_only=True):
    """A template has other content than before."""

    template_id: str


class WorkflowTemplateDeleted(DomainEvent, frozen=True, kw_only=True):
    """A template can no longer be used."""

    template_id: str


class WorkflowEvent(DomainEvent, frozen=True, kw_only=True):
    """Something that happened to a Workflow as a whole."""

    workflow_id: str


class WorkflowCreated(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was copied from a template."""


class WorkflowStatusChanged(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow is in another state."""

    status: WorkflowStatus


class WorkflowPlaced(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow belongs to a host from now on; answers of earlier epochs no longer count."""

    host: str
    epoch: int


class WorkflowDisplaced(WorkflowEvent, frozen=True, kw_only=True):
    """What ran under this placement is over, since its host was lost or began anew."""

    host: str
    epoch: int
    reason: str


class WorkflowStarted(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow began to run."""


class WorkflowStopRequested(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow shall rest or end as soon as its host confirms that nothing runs."""

    wanted: str
    reason: str


class WorkflowPaused(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow rests because somebody wanted it to."""


class WorkflowAwaiting(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow rests until a person has decided; with `until` it goes on by itself at that time."""

    work_id: str | None
    reason: str
    until: datetime | None = None


class WorkflowCostCorrected(WorkflowEvent, frozen=True, kw_only=True):
    """A turn that was over before had cost more than was known: this is what the run has cost in all."""

    cost_usd: float


class WorkflowResumed(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow runs again, from a Work on; from none when only the end was left."""

    from_work_id: str | None


class WorkflowCompleted(WorkflowEvent, frozen=True, kw_only=True):
    """Every Work of a Workflow is completed and has its checkpoint."""


class WorkflowFailed(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow cannot go on by itself; it can be resumed or cancelled."""

    reason: str


class WorkflowCancelled(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was given up and nothing of it runs."""


class WorkflowDeleted(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow is gone for its users."""


class WorkflowWorksUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """Works that had not started were added, removed, changed or put into another order."""

    added_work_ids: tuple[str, ...]
    removed_work_ids: tuple[str, ...]
    changed_work_ids: tuple[str, ...]


class WorkflowGitRefsUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow uses other repositories or branches than before."""

    added_refs: tuple[GitRef, ...]
    removed_refs: tuple[GitRef, ...]


class WorkflowMcpServerRefsUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow uses other MCP servers than before, told by their ids: the references may hold secrets."""

    added_refs: tuple[str, ...]
    removed_refs: tuple[str, ...]


class WorkEvent(DomainEvent, frozen=True, kw_only=True):
    """Something that happened to one Work."""

    work_id: str
    workflow_id: str


class WorkStatusChanged(WorkEvent, frozen=True, kw_only=True):
    """The derived status of a Work is another one."""

    status: WorkStatus


class WorkStarted(WorkEvent, frozen=True, kw_only=True):
    """The agent of a Work runs."""


class WorkCompleted(WorkEvent, frozen=True, kw_only=True):
    """Every Task of a Work is done and its checks passed."""


class WorkPaused(WorkEvent, frozen=True, kw_only=True):
    """A Work rests between two processes of its session."""


class WorkFailed(WorkEvent, frozen=True, kw_only=True):
    """A Work cannot go on by itself."""

    reason: str


class WorkRetried(WorkEvent, frozen=True, kw_only=True):
    """A Work failed and its policy allows another attempt."""

    reason: str
    failures: int


class WorkCancelled(WorkEvent, frozen=True, kw_only=True):
    """A Work was given up with its Workflow."""


class WorkReset(WorkEvent, frozen=True, kw_only=True):
    """A Work was undone by a rollback and will be done again."""


class TaskStarted(DomainEvent, frozen=True, kw_only=True):
    """The agent works on a Task."""

    work_id: str
    task_id: str


class TaskCompleted(DomainEvent, frozen=True, kw_only=True):
    """A Task was answered and its report, if any, is there."""

    work_id: str
    task_id: str


class TaskFailed(DomainEvent, frozen=True, kw_only=True):
    """The query or the report of a Task failed."""

    work_id: str
    task_id: str
    reason: str


class QuerySent(DomainEvent, frozen=True, kw_only=True):
    """A prompt is on its way to its agent."""

    work_id: str
    task_id: str
    attempt: int


class ReportGenerationStarted(DomainEvent, frozen=True, kw_only=True):
    """A report is being written."""

    report_id: str
    task_id: str


class WorkTreePendingRelease(DomainEvent, frozen=True, kw_only=True):
    """A checkout is no longer wanted."""

    work_tree_id: str
    workflow_id: str
    git_id: str


class WorkSpaceRemoved(DomainEvent, frozen=True, kw_only=True):
    """The folder of an undone Work is gone."""

    work_space_id: str
    work_id: str
