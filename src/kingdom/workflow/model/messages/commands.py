"""All commands to soldier hosts, and the answers that each can have."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.references import McpServerRef, SessionRef
from kingdom.workflow.model.report_outline import ReportSection


class HostCommand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A command to one host. Its answers repeat host, epoch and attempt."""

    workflow_id: str
    host: str
    epoch: int
    attempt: int

    @property
    def stream(self) -> str:
        """Return the stream of the host. Stop commands use a control stream, so they do not wait in a queue."""
        return f"soldier.{self.host}.control" if COMMANDS[type(self)].control else f"soldier.{self.host}"


class WorkTreeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkout to create: a new branch of a repository, from its base branch."""

    work_tree_id: str
    git_id: str
    base_branch: str
    branch: str


class PrepareResources(HostCommand, frozen=True, kw_only=True):
    """Create all of these checkouts, or none if one fails."""

    trees: tuple[WorkTreeRequest, ...]


class StartAgent(HostCommand, frozen=True, kw_only=True):
    """Prepare the WorkSpace and start an agent in it, or continue a `session`.

    The MCP server references have no environment because it may contain secrets. The host reads the environment from
    the record of the run. `reports` are the paths of the reports that the agent may read. `earlier_session`
    is used only without a `session`: the agent continues it if it still exists, otherwise it starts a new session.
    """

    work_id: str
    work_space_id: str
    model: str
    session: str | None
    work_tree_ids: tuple[str, ...]
    mcp_server_refs: tuple[McpServerRef, ...]
    reports: tuple[str, ...]
    earlier_session: SessionRef | None = msgspec.field(name="continues", default=None)


class SendQuery(HostCommand, frozen=True, kw_only=True):
    """Send a prompt to the agent, with the last `reply` of a person, if any.

    With `continues` the agent is told to continue the turn of an earlier attempt. With `reconcile` nothing is sent: the
    host looks up the result of this attempt in the transcript and answers QueryReconciled. The turn ends when its cost
    reaches `budget_usd`. `agent_attempt` is the `attempt` of the command that started the agent.
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
    """Let the agent write the report of a Task from its outline."""

    work_id: str
    agent_attempt: int
    task_id: str
    report_id: str
    report_outline: tuple[ReportSection, ...]
    budget_usd: float | None = None


class VerifyWork(HostCommand, frozen=True, kw_only=True):
    """End the agent, commit changed checkouts, then run the checks of the Work."""

    work_id: str
    agent_attempt: int
    commands: tuple[str, ...]
    work_tree_ids: tuple[str, ...]


class TakeCheckpoint(HostCommand, frozen=True, kw_only=True):
    """Record the verified commit of each WorkTree."""

    work_id: str
    checkpoint_id: str
    work_tree_ids: tuple[str, ...]


class StopAgent(HostCommand, frozen=True, kw_only=True):
    """Give the agent some time to finish its turn, then end it and every process it started.

    `attempt` is the `attempt` of the command that started the agent. StopAgent can overtake earlier commands. The host
    does not execute commands to this agent that arrive after StopAgent.
    """

    work_id: str


class InterruptAgent(HostCommand, frozen=True, kw_only=True):
    """End the agent and every process it started at once; otherwise like StopAgent."""

    work_id: str


class RollBack(HostCommand, frozen=True, kw_only=True):
    """Reset each WorkTree to its commit in `commits`, and the WorkTrees in `to_base` to their base; all or none.

    The earlier content is kept under rescue refs. The WorkSpaces are removed. The report files stay, because each
    attempt writes a new file.
    """

    checkpoint_id: str | None
    commits: dict[str, str]
    to_base: tuple[str, ...]
    work_space_ids: tuple[str, ...]


class ReleaseWorkTree(HostCommand, frozen=True, kw_only=True):
    """Remove a checkout. The host keeps its commits, and its uncommitted files under a rescue ref."""

    work_tree_id: str


@dataclass(frozen=True, slots=True)
class CommandContract:
    """The possible answers to a command, and whether it uses the control stream."""

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
