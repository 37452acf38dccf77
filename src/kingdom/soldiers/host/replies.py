"""The answers of a host to a command, and the context in which commands are executed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cache, partial
from typing import Any, TypeVar

import structlog

from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.errors import KingdomError, describe_error
from kingdom.soldiers.agents.limits import AgentLoops
from kingdom.soldiers.agents.port import AgentGone, BudgetSpent, TurnFailed, TurnTooLong, UsageLimited
from kingdom.soldiers.checkouts.run_checkouts import CheckoutFailed, RunCheckouts
from kingdom.soldiers.host.command_input import CommandInput
from kingdom.soldiers.host.reporter import HostReply
from kingdom.soldiers.host.running_agents import AgentSession, RunningAgents
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.transcripts.copier import TranscriptCopier
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.model.messages import answers, commands

ERROR_LENGTH_MAX = 2000
_log = structlog.get_logger("kingdom.soldiers")
_A = TypeVar("_A", bound=answers.HostAnswer)
_FAILURES: Mapping[type[commands.HostCommand], type[answers.HostAnswer]] = {
    commands.StartAgent: answers.AgentError,
    commands.VerifyWork: answers.VerifyFailed,
    commands.TakeCheckpoint: answers.CheckpointFailed,
    commands.RollBack: answers.RollBackFailed,
    commands.ReleaseWorkTree: answers.WorkTreeReleaseFailed,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContext:
    """The objects of this host that command handlers use.

    `base_variables` are the environment variables that every program gets.
    """

    folders: HostFolders
    checkouts: RunCheckouts
    agents: RunningAgents
    base_variables: Mapping[str, str]
    agent_environment: AgentEnvironment
    bus: Bus
    send: Callable[[HostReply], None]
    # If the store keeps copies of transcripts and diffs, both are set.
    texts: RunTexts | None = None
    copier: TranscriptCopier | None = None


def answer_to(command: commands.HostCommand, kind: type[_A], /, **fields: Any) -> _A:
    """Return an answer with the given fields; the other fields are copied from the command if both have them."""
    return kind(**{name: getattr(command, name) for name in _common_fields(type(command), kind)} | fields)


@cache
def _common_fields(command: type[commands.HostCommand], kind: type[answers.HostAnswer]) -> tuple[str, ...]:
    return tuple(set(kind.__struct_fields__) & set(command.__struct_fields__))


def failure_answers(
    command: commands.HostCommand,
    error: BaseException,
    *,
    cost_usd: float = 0.0,
    redaction: Redaction = DEFAULT_REDACTION,
) -> tuple[answers.HostAnswer, ...]:
    """Return the answers to a command that failed.

    A stop has no failure answer, because ending an agent is retried until it succeeds. `cost_usd` is the cost of the
    turn, unless the error has its own.
    """
    # A secret that is cut is not recognized, so secrets are removed first.
    text = redaction.text(describe_error(error))[-ERROR_LENGTH_MAX:]
    cost = {"cost_usd": error.cost_usd if isinstance(error, TurnFailed) else cost_usd}
    match command:
        case commands.PrepareResources():
            tree = error.work_tree_id if isinstance(error, CheckoutFailed) else command.trees[0].work_tree_id
            return (answer_to(command, answers.WorkTreeFailed, work_tree_id=tree, error=text),)
        case commands.SendQuery(reconcile=True):
            return (answer_to(command, answers.QueryReconciled, finding=answers.TranscriptFinding.NO_TRANSCRIPT),)
        case commands.SendQuery():
            causes = {"timed_out": isinstance(error, TurnTooLong), "looping": isinstance(error, AgentLoops)}
            return (answer_to(command, answers.QueryFailed, error=text, **causes, **cost, **_retry_fields(error)),)
        case commands.GenerateReport():
            return (answer_to(command, answers.ReportFailed, error=text, **cost, **_retry_fields(error)),)
    kind = _FAILURES.get(type(command))
    return (answer_to(command, kind, error=text),) if kind else ()


def _retry_fields(error: BaseException) -> dict[str, Any]:
    until = error.until.astimezone(UTC) if isinstance(error, UsageLimited) else None
    return {"over_budget": isinstance(error, BudgetSpent), "throttled_until": until}


def closing_reply(
    command_input: CommandInput[Any], *given_answers: answers.HostAnswer, documents: tuple[Record, ...] = ()
) -> HostReply:
    """Return the reply that closes a command."""
    return HostReply(
        workflow_id=command_input.command.workflow_id,
        answers=given_answers,
        documents=documents,
        closes=(command_input.accepted,),
        fallback=partial(failure_answers, command_input.command),
    )


def failure_reply(command_input: CommandInput[Any], error: Exception, redaction: Redaction) -> HostReply:
    """Return the reply that closes a command that failed."""
    command = command_input.command
    if not isinstance(error, KingdomError | OSError):
        _log.error("command failed", command=type(command).__name__, workflow=command.workflow_id, exc_info=error)
    # The end of a running agent is reported once for all its commands, but a failed start only by this reply.
    is_reported = isinstance(error, AgentGone) and not isinstance(command, commands.StartAgent)
    given_answers = () if is_reported else failure_answers(command, error, redaction=redaction)
    return HostReply(workflow_id=command.workflow_id, answers=given_answers, closes=(command_input.accepted,))


def running_session(context: HostContext, work_id: str, attempt: int) -> AgentSession:
    """Return the running agent of a Work; raises AgentGone if this attempt is not running."""
    session = context.agents.find(work_id)
    if session is None or session.attempt != attempt:
        raise AgentGone(f"the agent of {work_id} is not running any more")
    return session
