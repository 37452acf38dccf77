"""The closed table of commands: what a soldier host is told to do, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.references import McpServerRef
from kingdom.workflow.model.resources.template import ReportSection


class HostCommand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that one host shall do, under one placement; its answers repeat host, epoch and attempt."""

    workflow_id: str
    host: str
    epoch: int
    attempt: int

    @property
    def stream(self) -> str:
        """Return the stream of the host that shall get it; stopping does not queue behind anything else."""
        return f"soldier.{self.host}.control" if COMMANDS[type(self)].control else f"soldier.{self.host}"


class WorkTreeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkout to be made: a new branch of a repository, from its base branch."""

    work_tree_id: str
    git_id: str
    base_branch: str
    branch: str


class PrepareResources(HostCommand, frozen=True, kw_only=True):
    """Make these checkouts, all or none."""

    trees: tuple[WorkTreeRequest, ...]


class StartAgent(HostCommand, frozen=True, kw_only=True):
    """Lay out the WorkSpace and start an agent in it, or go on with a `session`.

    The references to MCP servers come without their environment, which may hold secrets: the host reads it in the run.
    """

    work_id: str
    work_space_id: str
    model: str
    session: str | None
    work_tree_ids: tuple[str, ...]
    mcp_server_refs: tuple[McpServerRef, ...]
    reports: tuple[str, ...]


class SendQuery(HostCommand, frozen=True, kw_only=True):
    """Give a prompt to the agent, with the `reply` of a person if the agent had asked one.

    With `continues` the session goes on with what an earlier attempt began. With `reconcile` nothing is sent: the
    transcript is asked what became of this very attempt, and QueryReconciled tells it. A turn ends that has cost
    `budget_usd`.
    """

    work_id: str
    agent_attempt: int
    task_id: str
    query: str
    report_outline: tuple[ReportSection, ...]
    timeout_seconds: int | None
    reply: str = ""
    continues: bool = False
    reconcile: bool = False
    budget_usd: float | None = None


class GenerateReport(HostCommand, frozen=True, kw_only=True):
    """Have the report of a Task written along its outline."""

    work_id: str
    agent_attempt: int
    task_id: str
    report_id: str
    report_outline: tuple[ReportSection, ...]
    budget_usd: float | None = None


class VerifyWork(HostCommand, frozen=True, kw_only=True):
    """End the agent, commit dirty trees, then run the Work's checks."""

    work_id: str
    agent_attempt: int
    commands: tuple[str, ...]
    work_tree_ids: tuple[str, ...]


class TakeCheckpoint(HostCommand, frozen=True, kw_only=True):
    """Record, per WorkTree, the commit that was verified."""

    work_id: str
    checkpoint_id: str
    work_tree_ids: tuple[str, ...]


class StopAgent(HostCommand, frozen=True, kw_only=True):
    """Let the agent end its turn for a while, then end it and all it started.

    The attempt is the agent's. Since this overtakes other commands, an agent of this attempt is not started later
    either, and nothing that names it as `agent_attempt` is begun.
    """

    work_id: str


class InterruptAgent(HostCommand, frozen=True, kw_only=True):
    """End the agent and all it started at once; what holds for a stop holds here too."""

    work_id: str


class RollBack(HostCommand, frozen=True, kw_only=True):
    """Bring every WorkTree back to its commit, those in `to_base` to their base, all or none, with rescue refs.

    The WorkSpaces named here are removed; report files stay, each attempt has its own.
    """

    checkpoint_id: str | None
    commits: dict[str, str]
    to_base: tuple[str, ...]
    work_space_ids: tuple[str, ...]


class ReleaseWorkTree(HostCommand, frozen=True, kw_only=True):
    """Remove a checkout, unless that would lose unpushed commits."""

    work_tree_id: str


@dataclass(frozen=True, slots=True)
class CommandContract:
    """What a command is answered with, and whether it goes by the control stream."""

    answers: tuple[type[answers.HostAnswer], ...]
    control: bool = False


COMMANDS: Mapping[type[HostCommand], CommandContract] = {
    PrepareResources: CommandContract((answers.WorkTreeCreated, answers.WorkTreeFailed)),
    StartAgent: CommandContract(
        (answers.WorkSpaceCreated, answers.AgentStarted, answers.AgentError, answers.AgentSpent)
    ),
    SendQuery: CommandContract(
        (
            answers.QueryResponded,
            answers.QueryFailed,
            answers.QueryReconciled,
            answers.AgentAsked,
            answers.AgentSpent,
            answers.AgentPetitioned,
        )
    ),
    GenerateReport: CommandContract(
        (answers.ReportGenerated, answers.ReportFailed, answers.AgentSpent, answers.AgentPetitioned)
    ),
    VerifyWork: CommandContract((answers.WorkVerified, answers.VerifyFailed, answers.AgentStopped)),
    TakeCheckpoint: CommandContract((answers.CheckpointCreated, answers.CheckpointFailed)),
    StopAgent: CommandContract((answers.AgentStopped,), control=True),
    InterruptAgent: CommandContract((answers.AgentStopped,), control=True),
    RollBack: CommandContract((answers.RolledBack, answers.RollBackFailed)),
    ReleaseWorkTree: CommandContract((answers.WorkTreeReleased, answers.WorkTreeReleaseFailed)),
}
