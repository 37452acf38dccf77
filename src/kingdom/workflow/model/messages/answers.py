"""The domain events that soldier hosts send. Each event repeats the host, epoch and attempt of its command."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from kingdom.workflow.model.messages.events import DomainEvent


class HostAnswer(DomainEvent, frozen=True, kw_only=True):
    """An answer of a soldier host. It is stale if the run has another placement or a later attempt by now."""

    host: str
    epoch: int
    attempt: int


class AnswerWithCost(HostAnswer, frozen=True, kw_only=True):
    """An answer with the cost of the agent's turn."""

    cost_usd: float = 0.0


class FailedTurn(AnswerWithCost, frozen=True, kw_only=True):
    """A turn without the requested result.

    The session can be continued if the turn ended because the budget was used up (`over_budget`), or because the vendor
    of the model rejects requests until `throttled_until`.
    """

    error: str
    over_budget: bool = False
    throttled_until: datetime | None = None


class AgentStarted(HostAnswer, frozen=True, kw_only=True):
    """An agent is running; `session` is the token to continue its conversation, `pid` its process id on the host."""

    work_id: str
    session: str | None = None
    pid: int | None = None


class AgentStopped(HostAnswer, frozen=True, kw_only=True):
    """No process of a Work is running: neither its agent nor a process that the agent or the checks started."""

    work_id: str


class AgentError(HostAnswer, frozen=True, kw_only=True):
    """An agent could not be started, or it ended by itself; no process of its Work is running."""

    work_id: str
    error: str


class QueryResponded(AnswerWithCost, frozen=True, kw_only=True):
    """An agent answered a prompt; `response` refers to the file that contains the answer."""

    work_id: str
    task_id: str
    response: str


class QueryFailed(FailedTurn, frozen=True, kw_only=True):
    """A prompt was not answered; `timedOut` means that it took too long, `looping` that the agent was in a loop."""

    work_id: str
    task_id: str
    timed_out: bool = False
    looping: bool = False


class AgentAsked(AnswerWithCost, frozen=True, kw_only=True):
    """An agent ended its turn with a question for a person."""

    work_id: str
    task_id: str
    question: str
    choices: tuple[str, ...] = ()


class AgentSpent(AnswerWithCost, frozen=True, kw_only=True):
    """The cost of an interrupted turn; without a `taskId`, a cost that the agent had outside of its turns."""

    work_id: str
    task_id: str = ""
    report_id: str = ""


class AgentPetitioned(HostAnswer, frozen=True, kw_only=True):
    """An agent requests an output that it may not create by itself, such as a comment on a pull request."""

    work_id: str
    task_id: str
    petition_id: str
    kind: str
    body: dict[str, Any]


class TranscriptFinding(StrEnum):
    """What the transcript of an agent shows about a prompt whose answer is unknown.

    ABSENT: the prompt did not arrive. UNFINISHED: the agent started to work on it.
    """

    ABSENT = "ABSENT"
    ANSWERED = "ANSWERED"
    UNFINISHED = "UNFINISHED"
    NO_TRANSCRIPT = "NO_TRANSCRIPT"


class QueryReconciled(AnswerWithCost, frozen=True, kw_only=True):
    """A host looked up the result of a prompt in the transcript."""

    work_id: str
    task_id: str
    finding: TranscriptFinding
    response: str = ""


class ReportGenerated(AnswerWithCost, frozen=True, kw_only=True):
    """A report was written to its file."""

    report_id: str
    task_id: str
    file_path: str


class ReportFailed(FailedTurn, frozen=True, kw_only=True):
    """A report could not be written."""

    report_id: str
    task_id: str


class WorkVerified(HostAnswer, frozen=True, kw_only=True):
    """The checks of a Work passed; `result` is the result document of its agent, if any."""

    work_id: str
    result: dict[str, Any] | None = None


class VerifyFailed(HostAnswer, frozen=True, kw_only=True):
    """The checks of a Work did not pass."""

    work_id: str
    error: str


class CheckpointCreated(HostAnswer, frozen=True, kw_only=True):
    """A checkpoint was taken; `commits` maps each WorkTree id to its commit.

    `changedPaths` has the paths that differ from the start of a WorkTree, unless there are too many.
    """

    checkpoint_id: str
    workflow_id: str
    work_id: str
    commits: dict[str, str]
    changed_paths: dict[str, list[str]] = msgspec.field(default_factory=dict)


class CheckpointFailed(HostAnswer, frozen=True, kw_only=True):
    """A checkpoint could not be taken."""

    workflow_id: str
    work_id: str
    error: str


class RolledBack(HostAnswer, frozen=True, kw_only=True):
    """Every WorkTree was reset to a checkpoint or its base; the earlier content is kept under `rescueRefs`."""

    workflow_id: str
    checkpoint_id: str | None
    rescue_refs: tuple[str, ...] = ()


class RollBackFailed(HostAnswer, frozen=True, kw_only=True):
    """No WorkTree was rolled back."""

    workflow_id: str
    error: str


class WorkTreeCreated(HostAnswer, frozen=True, kw_only=True):
    """The checkout of a repository was created."""

    work_tree_id: str
    workflow_id: str


class WorkTreeFailed(HostAnswer, frozen=True, kw_only=True):
    """A checkout could not be created; none of the checkouts of the same command exists."""

    work_tree_id: str
    workflow_id: str
    error: str


class WorkTreeReleased(HostAnswer, frozen=True, kw_only=True):
    """A checkout was removed."""

    work_tree_id: str
    workflow_id: str


class WorkTreeReleaseFailed(HostAnswer, frozen=True, kw_only=True):
    """A checkout could not be removed completely."""

    work_tree_id: str
    workflow_id: str
    error: str


class WorkSpaceCreated(HostAnswer, frozen=True, kw_only=True):
    """The folder for the agent of a Work was created."""

    work_space_id: str
    work_id: str
