"""The domain events that the engine emits, with their payloads. The class name is the event type on the wire.

The envelope of an event about a run has the Workflow id as its aggregate id, so not every payload repeats this id.
`answers.py` has the events of soldier hosts, `catalog.py` the complete catalog.
"""

from datetime import datetime

import msgspec

from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.status import WorkflowStatus, WorkStatus


class DomainEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event of a run or of a resource. Fields are camelCase on the wire."""


class GitCreated(DomainEvent, frozen=True, kw_only=True):
    """A repository was registered."""

    git_id: str


class GitDeleted(DomainEvent, frozen=True, kw_only=True):
    """A repository was deleted."""

    git_id: str


class McpServerRegistered(DomainEvent, frozen=True, kw_only=True):
    """An MCP server was registered."""

    mcp_server_id: str


class McpServerUnregistered(DomainEvent, frozen=True, kw_only=True):
    """An MCP server was unregistered."""

    mcp_server_id: str


class HostRegistered(DomainEvent, frozen=True, kw_only=True):
    """A soldier host accepts commands; every agent that ran on it under an earlier epoch has ended."""

    host: str
    epoch: int
    slots: int


class HostLost(DomainEvent, frozen=True, kw_only=True):
    """A soldier host did not renew its lease or was retired; its agents have ended and its answers are ignored."""

    host: str
    epoch: int


class HostRunsLeft(DomainEvent, frozen=True, kw_only=True):
    """Another transaction must displace the remaining runs of a soldier host: those with ids above `after`."""

    host: str
    epoch: int
    reason: str
    after: str


class WorkflowTemplateCreated(DomainEvent, frozen=True, kw_only=True):
    """A template was created, from a file or from a Workflow."""

    template_id: str


class WorkflowTemplateUpdated(DomainEvent, frozen=True, kw_only=True):
    """The content of a template changed."""

    template_id: str


class WorkflowTemplateDeleted(DomainEvent, frozen=True, kw_only=True):
    """A template was deleted."""

    template_id: str


class WorkflowEvent(DomainEvent, frozen=True, kw_only=True):
    """An event of a Workflow as a whole."""

    workflow_id: str


class WorkflowCreated(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was created from a template."""


class WorkflowStatusChanged(WorkflowEvent, frozen=True, kw_only=True):
    """The status of a Workflow changed."""

    status: WorkflowStatus


class WorkflowPlaced(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was placed on a host; answers of earlier epochs are ignored."""

    host: str
    epoch: int


class WorkflowDisplaced(WorkflowEvent, frozen=True, kw_only=True):
    """The host of a Workflow was lost or restarted, so no process of this placement is running."""

    host: str
    epoch: int
    reason: str


class WorkflowStarted(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow started to run."""


class WorkflowStopRequested(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow will pause, wait or end when its host confirms that none of its processes is running."""

    wanted: str
    reason: str


class WorkflowPaused(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was paused by request."""


class WorkflowAwaiting(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow waits for the decision of a person; with `until` it continues by itself at that time."""

    work_id: str | None
    reason: str
    until: datetime | None = None


class WorkflowCostCorrected(WorkflowEvent, frozen=True, kw_only=True):
    """A late answer changed the known cost; `costUsd` is the total cost of the run."""

    cost_usd: float


class WorkflowResumed(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow runs again, from the Work `fromWorkId`, which is null if every Work was finished."""

    from_work_id: str | None


class WorkflowCompleted(WorkflowEvent, frozen=True, kw_only=True):
    """Every Work of a Workflow is completed and has its checkpoint."""


class WorkflowFailed(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow failed; it can be resumed or cancelled."""

    reason: str


class WorkflowCancelled(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was cancelled, and none of its processes is running."""


class WorkflowDeleted(WorkflowEvent, frozen=True, kw_only=True):
    """A Workflow was deleted."""


class WorkflowWorksUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """Works that had not started were added, removed, changed or reordered."""

    added_work_ids: tuple[str, ...]
    removed_work_ids: tuple[str, ...]
    changed_work_ids: tuple[str, ...]


class WorkflowGitRefsUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """The repositories or branches of a Workflow changed."""

    added_refs: tuple[GitRef, ...]
    removed_refs: tuple[GitRef, ...]


class WorkflowMcpServerRefsUpdated(WorkflowEvent, frozen=True, kw_only=True):
    """The MCP servers of a Workflow changed; the payload has only ids because references may contain secrets."""

    added_refs: tuple[str, ...]
    removed_refs: tuple[str, ...]


class WorkEvent(DomainEvent, frozen=True, kw_only=True):
    """An event of one Work."""

    work_id: str
    workflow_id: str


class WorkStatusChanged(WorkEvent, frozen=True, kw_only=True):
    """The derived status of a Work changed, or a Task of the Work is completed; `status` is the status now."""

    status: WorkStatus


class WorkStarted(WorkEvent, frozen=True, kw_only=True):
    """The agent of a Work started."""


class WorkCompleted(WorkEvent, frozen=True, kw_only=True):
    """Every Task of a Work is completed and its checks passed."""


class WorkPaused(WorkEvent, frozen=True, kw_only=True):
    """A Work is paused; its session can be continued by a new process."""


class WorkFailed(WorkEvent, frozen=True, kw_only=True):
    """A Work failed."""

    reason: str


class WorkRetried(WorkEvent, frozen=True, kw_only=True):
    """A Work failed and is retried, as the policy allows."""

    reason: str
    failures: int


class WorkCancelled(WorkEvent, frozen=True, kw_only=True):
    """A Work was cancelled with its Workflow."""


class WorkReset(WorkEvent, frozen=True, kw_only=True):
    """A rollback reset a Work; the Work will run again."""


class TaskStarted(DomainEvent, frozen=True, kw_only=True):
    """The agent started to work on a Task."""

    work_id: str
    task_id: str


class TaskCompleted(DomainEvent, frozen=True, kw_only=True):
    """A Task has its answer and, if required, its report."""

    work_id: str
    task_id: str


class TaskFailed(DomainEvent, frozen=True, kw_only=True):
    """The prompt or the report of a Task failed."""

    work_id: str
    task_id: str
    reason: str


class QuerySent(DomainEvent, frozen=True, kw_only=True):
    """The prompt of a Task was sent to the agent."""

    work_id: str
    task_id: str
    attempt: int


class ReportGenerationStarted(DomainEvent, frozen=True, kw_only=True):
    """A report is being written."""

    report_id: str
    task_id: str


class WorkTreePendingRelease(DomainEvent, frozen=True, kw_only=True):
    """The run no longer needs a checkout."""

    work_tree_id: str
    workflow_id: str
    git_id: str


class WorkSpaceRemoved(DomainEvent, frozen=True, kw_only=True):
    """The folder of a reset Work was removed."""

    work_space_id: str
    work_id: str
