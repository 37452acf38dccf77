"""What a host says about a command, and what it executes commands with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cache, partial
from typing import Any, TypeVar

from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.soldiers.agent import AgentGone, BudgetSpent, TurnFailed, TurnTooLong, UsageLimited
from kingdom.soldiers.agents import Agents, Session
from kingdom.soldiers.briefing import Briefing
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.limits import AgentLoops
from kingdom.soldiers.quarters import Quarters
from kingdom.soldiers.reporter import Statement
from kingdom.soldiers.trees import TreeFailed, Trees
from kingdom.workflow.model.messages import answers, commands

ERROR_MAX = 2000
_A = TypeVar("_A", bound=answers.HostAnswer)
_FAILURES: Mapping[type[commands.HostCommand], type[answers.HostAnswer]] = {
    commands.StartAgent: answers.AgentError,
    commands.VerifyWork: answers.VerifyFailed,
    commands.TakeCheckpoint: answers.CheckpointFailed,
    commands.RollBack: answers.RollBackFailed,
    commands.ReleaseWorkTree: answers.WorkTreeReleaseFailed,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What commands are executed with."""

    folders: Folders
    trees: Trees
    agents: Agents
    environment: Mapping[str, str]
    quarters: Quarters
    bus: Bus
    say: Callable[[Statement], None]


def answer(command: commands.HostCommand, kind: type[_A], /, **fields: Any) -> _A:
    """Return an answer under the placement and the attempt of its command, with what it shares with it."""
    return kind(**{name: getattr(command, name) for name in _shared(type(command), kind)} | fields)


@cache
def _shared(command: type[commands.HostCommand], kind: type[answers.HostAnswer]) -> tuple[str, ...]:
    return tuple(set(kind.__struct_fields__) & set(command.__struct_fields__))


def failure(
    command: commands.HostCommand, error: BaseException, *, cost_usd: float = 0.0
) -> tuple[answers.HostAnswer, ...]:
    """Return what is said of a command that could not be executed; of a stop nothing is, it is tried again.

    `cost_usd` is what its turn has cost where the error does not tell.
    """
    text = str(error)[-ERROR_MAX:] or type(error).__name__
    cost = {"cost_usd": error.cost_usd if isinstance(error, TurnFailed) else cost_usd}
    match command:
        case commands.PrepareResources():
            tree = error.tree_id if isinstance(error, TreeFailed) else command.trees[0].work_tree_id
            return (answer(command, answers.WorkTreeFailed, work_tree_id=tree, error=text),)
        case commands.SendQuery(reconcile=True):
            return (answer(command, answers.QueryReconciled, finding=answers.TranscriptFinding.NO_TRANSCRIPT),)
        case commands.SendQuery():
            causes = {"timed_out": isinstance(error, TurnTooLong), "looping": isinstance(error, AgentLoops)}
            return (answer(command, answers.QueryFailed, error=text, **causes, **cost, **_why_it_can_go_on(error)),)
        case commands.GenerateReport():
            return (answer(command, answers.ReportFailed, error=text, **cost, **_why_it_can_go_on(error)),)
    kind = _FAILURES.get(type(command))
    return (answer(command, kind, error=text),) if kind else ()


def _why_it_can_go_on(error: BaseException) -> dict[str, Any]:
    until = error.until.astimezone(UTC) if isinstance(error, UsageLimited) else None
    return {"over_budget": isinstance(error, BudgetSpent), "throttled_until": until}


def said_of(briefing: Briefing[Any], *said: answers.HostAnswer, documents: tuple[Record, ...] = ()) -> Statement:
    """Return the statement that closes a command."""
    return Statement(
        workflow_id=briefing.command.workflow_id,
        answers=said,
        documents=documents,
        closes=(briefing.accepted,),
        otherwise=partial(failure, briefing.command),
    )


def session_of(tools: Tools, work_id: str, attempt: int) -> Session:
    """Return the agent that runs for a Work; raises AgentGone where this attempt of it does not."""
    session = tools.agents.find(work_id)
    if session is None or session.attempt != attempt:
        raise AgentGone(f"the agent of {work_id} does not run any more")
    return session
