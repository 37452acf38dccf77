"""Every domain event that a soldier host says, each with the placement and the attempt that it answers for."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from kingdom.workflow.model.messages.events import DomainEvent


class HostAnswer(DomainEvent, frozen=True, kw_only=True):
    """Something that a soldier host says; it counts only for the current placement and attempt."""

    host: str
    epoch: int
    attempt: int


class PaidAnswer(HostAnswer, frozen=True, kw_only=True):
    """An answer of an agent, and what it cost."""

    cost_usd: float = 0.0


class FailedTurn(PaidAnswer, frozen=True, kw_only=True):
    """A turn without what was asked for.

    Where it was `over_budget`, or the vendor lets the agent do nothing until `throttled_until`, its session can go on.
    """

    error: str
    over_budget: bool = False
    throttled_until: datetime | None = None


class AgentStarted(HostAnswer, frozen=True, kw_only=True):
    """An agent runs; `session` is what its conversation is continued by, `pid` its process on the host's machine."""

    work_id: str
    session: str | None = None
    pid: int | None = None


class AgentStopped(HostAnswer, frozen=True, kw_only=True):
    """Nothing of a Work runs any more: neither its agent nor what the agent or its checks had started."""

    work_id: str


class AgentError(HostAnswer, frozen=True, kw_only=True):
    """An agent could not be started, or ended by itself; nothing of its Work runs any more."""

    work_id: str
    error: str


class QueryResponded(PaidAnswer, frozen=True, kw_only=True):
    """An agent answered a prompt; `response` refers to the file that holds it."""

    work_id: str
    task_id: str
    response: str


class QueryFailed(FailedTurn, frozen=True, kw_only=True):
    """A prompt was not answered; `timed_out` where it took too long, `looping` where the agent went in circles."""

    work_id: str
    task_id: str
    timed_out: bool = False
    looping: bool = False


class AgentAsked(PaidAnswer, frozen=True, kw_only=True):
    """An agent ended its turn with a question for a person."""

    work_id: str
    task_id: str
    question: str
    choices: tuple[str, ...] = ()


class AgentSpent(PaidAnswer, frozen=True, kw_only=True):
    """What a turn had cost that was cut off; without a `task_id`, what an agent has cost outside of its turns."""

    work_id: str
    task_id: str = ""
    report_id: str = ""


class AgentPetitioned(HostAnswer, frozen=True, kw_only=True):
    """An agent requests an output that it has no right to cause itself, such as a comment on a pull request."""

    work_id: str
    task_id: str
    petition_id: str
    kind: str
    body: dict[str, Any]


class TranscriptFinding(StrEnum):
    """What a transcript tells about a prompt that nobody saw end."""

    ABSENT = "ABSENT"
    ANSWERED = "ANSWERED"
    UNFINISHED = "UNFINISHED"
    NO_TRANSCRIPT = "NO_TRANSCRIPT"


class QueryReconciled(PaidAnswer, frozen=True, kw_only=True):
    """A host looked up in the transcript what became of a prompt."""

    work_id: str
    task_id: str
    finding: TranscriptFinding
    response: str = ""


class ReportGenerated(PaidAnswer, frozen=True, kw_only=True):
    """A report lies in its file."""

    report_id: str
    task_id: str
    file_path: str


class ReportFailed(FailedTurn, frozen=True, kw_only=True):
    """A report could not be written."""

    report_id: str
    task_id: str


class WorkVerified(HostAnswer, frozen=True, kw_only=True):
    """The checks of a Work passed; `result` is what its agent reported, if it did."""

    work_id: str
    result: dict[str, Any] | None = None


class VerifyFailed(HostAnswer, frozen=True, kw_only=True):
    """The checks of a Work did not pass."""

    work_id: str
    error: str


class CheckpointCreated(HostAnswer, frozen=True, kw_only=True):
    """There is a commit per WorkTree to return to; `commits` maps the WorkTree's id to it."""

    checkpoint_id: str
    workflow_id: str
    work_id: str
    commits: dict[str, str]


class CheckpointFailed(HostAnswer, frozen=True, kw_only=True):
    """No checkpoint could be taken."""

    workflow_id: str
    work_id: str
    error: str


class RolledBack(HostAnswer, frozen=True, kw_only=True):
    """Every WorkTree is back at a checkpoint, or at its base; what lay there is kept under the rescue refs."""

    workflow_id: str
    checkpoint_id: str | None
    rescue_refs: tuple[str, ...] = ()


class RollBackFailed(HostAnswer, frozen=True, kw_only=True):
    """No WorkTree was rolled back."""

    workflow_id: str
    error: str


class WorkTreeCreated(HostAnswer, frozen=True, kw_only=True):
    """The checkout of a repository is there."""

    work_tree_id: str
    workflow_id: str


class WorkTreeFailed(HostAnswer, frozen=True, kw_only=True):
    """A checkout could not be made, so none of the same request is there."""

    work_tree_id: str
    workflow_id: str
    error: str


class WorkTreeReleased(HostAnswer, frozen=True, kw_only=True):
    """A checkout is gone."""

    work_tree_id: str
    workflow_id: str


class WorkTreeReleaseFailed(HostAnswer, frozen=True, kw_only=True):
    """A checkout could not be removed; whatever is left of it is still there."""

    work_tree_id: str
    workflow_id: str
    error: str


class WorkSpaceCreated(HostAnswer, frozen=True, kw_only=True):
    """The folder in which a Work's agent runs is there."""

    work_space_id: str
    work_id: str
