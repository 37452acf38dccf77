"""How each command is executed: outside of any transaction, ending in what the host says about it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

from kingdom.bus.record import Record
from kingdom.errors import ProgramFailed
from kingdom.soldiers import work_space
from kingdom.soldiers.agent import (
    AgentFailed,
    AgentGone,
    Asked,
    Launch,
    Petitioned,
    Prompt,
    TurnFailed,
    TurnTooLong,
    Update,
)
from kingdom.soldiers.agents import Agents, Session
from kingdom.soldiers.briefing import Briefing, document_of
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.process import described, run_program
from kingdom.soldiers.reporter import Statement
from kingdom.soldiers.result import as_reported, forget_refusal, read_result
from kingdom.soldiers.trees import TreeFailed, Trees
from kingdom.soldiers.turn import take_turn
from kingdom.workflow.model import answers, commands
from kingdom.workflow.records import ACTIVE, DOCUMENTS

QUERY_LIMIT = timedelta(minutes=10)
REPORT_LIMIT = timedelta(minutes=5)
VERIFY_LIMIT = timedelta(minutes=10)
# An agent that is to end may finish its turn for so long.
GRACE = timedelta(seconds=30)
_ERROR_MAX = 2000
_A = TypeVar("_A", bound=answers.HostAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What commands are executed with."""

    folders: Folders
    trees: Trees
    agents: Agents
    environment: Mapping[str, str]
    say: Callable[[Statement], None]


def answer(command: commands.Command, kind: type[_A], /, **fields: Any) -> _A:
    """Return an answer under the placement and the attempt of its command, with what it shares with it."""
    return kind(**{name: getattr(command, name) for name in _shared(type(command), kind)} | fields)


@cache
def _shared(command: type[commands.Command], kind: type[answers.HostAnswer]) -> tuple[str, ...]:
    return tuple(set(kind.__struct_fields__) & set(command.__struct_fields__))


def failure(command: commands.Command, error: BaseException) -> tuple[answers.HostAnswer, ...]:
    """Return what is said of a command that could not be executed; of a stop nothing is, it is tried again."""
    text = str(error)[-_ERROR_MAX:] or type(error).__name__
    cost = {"cost_usd": error.cost_usd} if isinstance(error, TurnFailed) else {}
    match command:
        case commands.PrepareResources():
            tree = error.tree_id if isinstance(error, TreeFailed) else command.trees[0].work_tree_id
            return (answer(command, answers.WorkTreeFailed, work_tree_id=tree, error=text),)
        case commands.SendQuery(reconcile=True):
            return (answer(command, answers.QueryReconciled, finding=answers.Finding.NO_TRANSCRIPT),)
        case commands.SendQuery():
            timed_out = isinstance(error, TurnTooLong)
            return (answer(command, answers.QueryFailed, error=text, timed_out=timed_out, **cost),)
        case commands.GenerateReport():
            return (answer(command, answers.ReportFailed, error=text, **cost),)
    kind = _FAILURES.get(type(command))
    return (answer(command, kind, error=text),) if kind else ()


async def prepare_resources(tools: Tools, briefing: Briefing[commands.PrepareResources]) -> Statement:
    """Make the checkouts, all or none."""
    command = briefing.command
    wanted = [tree.work_tree_id for tree in command.trees]
    await tools.trees.prepare(briefing.some_trees(*wanted))
    return _said(briefing, *(answer(command, answers.WorkTreeCreated, work_tree_id=tree) for tree in wanted))


async def start_agent(tools: Tools, briefing: Briefing[commands.StartAgent]) -> Statement:
    """Lay out the WorkSpace and start an agent in it, or go on with its session."""
    command, work = briefing.command, briefing.work
    if work is None:
        raise ProgramFailed(f"the run has no work {command.work_id} any more")
    space = tools.folders.space(briefing.general, command.work_space_id)
    trees = briefing.some_trees(*command.work_tree_ids)
    work_space.lay_out(space, tools.folders.run(command.workflow_id), work, trees, briefing.reports)
    tools.say(Statement(workflow_id=command.workflow_id, answers=(answer(command, answers.WorkSpaceCreated),)))
    session = await tools.agents.start(_launch(tools, briefing), command)
    token = f"{session.launch.soldier_id}/{session.agent.session}"
    return _said(briefing, answer(command, answers.AgentStarted, session=token, pid=session.agent.pid))


async def send_query(tools: Tools, briefing: Briefing[commands.SendQuery]) -> Statement:
    """Give a prompt to the agent, or look up what became of an earlier one."""
    command = briefing.command
    session = _session(tools, command.work_id, command.agent_attempt)
    prompt_id = f"{command.task_id}#{command.attempt}"
    if command.reconcile:
        found = await tools.agents.client.inspect(session.launch, prompt_id)
        petitions = _Petitions(tools, command)
        for petition in found.petitions:
            petitions.hear(petition)
        document = _document(command, f"{command.task_id}-a{command.attempt}", found.text)
        answered = found.finding is answers.Finding.ANSWERED
        said = answer(
            command,
            answers.QueryReconciled,
            finding=found.finding,
            response=document.id if answered else "",
            cost_usd=found.cost_usd,
        )
        return _said(briefing, said, documents=(document,) if answered else ())
    prompt = Prompt(id=prompt_id, text=command.query, continues=command.continues, reply=command.reply)
    limit = timedelta(seconds=command.timeout_seconds) if command.timeout_seconds else QUERY_LIMIT
    space = session.launch.work_space
    forget_refusal(space)
    end = as_reported(await take_turn(session.agent, prompt, limit, _Petitions(tools, command).hear), space)
    if isinstance(end, Asked):
        asked = answer(command, answers.AgentAsked, question=end.question, choices=end.choices, cost_usd=end.cost_usd)
        return _said(briefing, asked)
    document = _document(command, f"{command.task_id}-a{command.attempt}", end.text)
    responded = answer(command, answers.QueryResponded, response=document.id, cost_usd=end.cost_usd)
    return _said(briefing, responded, documents=(document,))


async def generate_report(tools: Tools, briefing: Briefing[commands.GenerateReport]) -> Statement:
    """Have the agent write a report along its outline, and keep it as a file and as a document."""
    command = briefing.command
    session = _session(tools, command.work_id, command.agent_attempt)
    prompt = Prompt(id=f"{command.report_id}#{command.attempt}", text=_report_prompt(command))
    end = await take_turn(session.agent, prompt, REPORT_LIMIT, _nothing)
    if isinstance(end, Asked):
        raise AgentFailed("the agent asked a question instead of writing the report", end.cost_usd)
    path = f"reports/{command.report_id}-a{command.attempt}.md"
    work_space.write_whole(tools.folders.report(command.workflow_id, path), end.text)
    document = _document(command, document_of(path), end.text)
    said = answer(command, answers.ReportGenerated, file_path=path, cost_usd=end.cost_usd)
    return _said(briefing, said, documents=(document,))


async def verify_work(tools: Tools, briefing: Briefing[commands.VerifyWork]) -> Statement:
    """Commit what the agent left, then run the checks of the Work in its WorkSpace."""
    command, work = briefing.command, briefing.work
    await tools.trees.commit(briefing.some_trees(*command.work_tree_ids), _message(briefing))
    space = tools.folders.space(briefing.general, (work and work.work_space_id) or "")
    for check in command.commands:
        finished = await run_program(
            ["/bin/sh", "-c", check],
            cwd=space,
            environment=_environment(tools, command.workflow_id),
            timeout=VERIFY_LIMIT,
        )
        if finished.code:
            raise ProgramFailed(f"`{check}` failed ({described(finished.code)}): {finished.output[-_ERROR_MAX:]}")
    return _said(briefing, answer(command, answers.WorkVerified, result=read_result(space)))


async def take_checkpoint(tools: Tools, briefing: Briefing[commands.TakeCheckpoint]) -> Statement:
    """End the agent and record a commit per checkout."""
    command = briefing.command
    session = tools.agents.find(command.work_id)
    if session:
        await tools.agents.end(session, GRACE)
        stopped = answer(command, answers.AgentStopped, attempt=session.attempt)
        tools.say(Statement(workflow_id=command.workflow_id, answers=(stopped,)))
    trees = briefing.some_trees(*command.work_tree_ids)
    commits = await tools.trees.checkpoint(trees, command.checkpoint_id, _message(briefing))
    return _said(briefing, answer(command, answers.CheckpointCreated, commits=commits))


async def roll_back(tools: Tools, briefing: Briefing[commands.RollBack]) -> Statement:
    """Bring every checkout back, all or none, and remove the WorkSpaces of undone Works."""
    command = briefing.command
    trees = list(briefing.trees.values())
    rescue = f"{command.workflow_id}/{command.attempt}"
    refs = await tools.trees.roll_back(trees, command.commits, command.to_base, rescue)
    for space in command.work_space_ids:
        work_space.remove(tools.folders.space(briefing.general, space))
    return _said(briefing, answer(command, answers.RolledBack, rescue_refs=refs))


async def release_work_tree(tools: Tools, briefing: Briefing[commands.ReleaseWorkTree]) -> Statement:
    """Remove a checkout; uncommitted files are kept under a rescue ref, commits on their branch."""
    command = briefing.command
    for tree in briefing.trees.values():
        await tools.trees.release(tree, f"{command.workflow_id}/release-{command.attempt}")
    if briefing.ended and not tools.folders.has_trees(command.workflow_id):
        await asyncio.to_thread(tools.folders.remove_run, command.workflow_id)
    return _said(briefing, answer(command, answers.WorkTreeReleased))


ERRANDS: Mapping[type[commands.Command], Callable[[Tools, Any], Awaitable[Statement]]] = {
    commands.PrepareResources: prepare_resources,
    commands.StartAgent: start_agent,
    commands.SendQuery: send_query,
    commands.GenerateReport: generate_report,
    commands.VerifyWork: verify_work,
    commands.TakeCheckpoint: take_checkpoint,
    commands.RollBack: roll_back,
    commands.ReleaseWorkTree: release_work_tree,
}
_FAILURES: Mapping[type[commands.Command], type[answers.HostAnswer]] = {
    commands.StartAgent: answers.AgentError,
    commands.VerifyWork: answers.VerifyFailed,
    commands.TakeCheckpoint: answers.CheckpointFailed,
    commands.RollBack: answers.RollBackFailed,
    commands.ReleaseWorkTree: answers.WorkTreeReleaseFailed,
}


class _Petitions:
    """Says what an agent requests on the way to its answer."""

    def __init__(self, tools: Tools, command: commands.SendQuery) -> None:
        self._tools = tools
        self._command = command
        self._count = 0

    def hear(self, update: Update) -> None:
        if isinstance(update, Petitioned):
            self._count += 1
            command = self._command
            petition_id = f"{command.task_id}-a{command.attempt}-p{self._count}"
            said = answer(command, answers.AgentPetitioned, petition_id=petition_id, kind=update.kind, body=update.body)
            self._tools.say(Statement(workflow_id=command.workflow_id, answers=(said,)))


def _nothing(_: Update) -> None:
    return


def _launch(tools: Tools, briefing: Briefing[commands.StartAgent]) -> Launch:
    """Return how the agent of a Work is started; a session is named by its soldier and the agent's own name for it."""
    command = briefing.command
    soldier_id, _, token = (command.session or "").partition("/")
    soldier_id = soldier_id or f"soldier-{int(time.time())}-{secrets.randbelow(10**6):06d}"
    return Launch(
        soldier_id=soldier_id,
        work_space=tools.folders.space(briefing.general, command.work_space_id),
        model=command.model,
        session=token or None,
        transcript=tools.folders.transcript(soldier_id),
        errors=tools.folders.errors(soldier_id),
        environment=_environment(tools, command.workflow_id),
        mcp_servers=briefing.mcp_servers,
    )


def _environment(tools: Tools, workflow_id: str) -> dict[str, str]:
    home = tools.folders.home(workflow_id)
    temporary = home / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {**tools.environment, "HOME": str(home), "TMPDIR": str(temporary)}


def _session(tools: Tools, work_id: str, attempt: int) -> Session:
    session = tools.agents.find(work_id)
    if session is None or session.attempt != attempt:
        raise AgentGone(f"the agent of {work_id} does not run any more")
    return session


def _said(briefing: Briefing[Any], *said: answers.HostAnswer, documents: tuple[Record, ...] = ()) -> Statement:
    return Statement(
        workflow_id=briefing.command.workflow_id,
        answers=said,
        documents=documents,
        closes=(briefing.accepted,),
        otherwise=partial(failure, briefing.command),
    )


def _document(command: commands.SendQuery | commands.GenerateReport, document_id: str, text: str) -> Record:
    document = {"workflowId": command.workflow_id, "workId": command.work_id, "taskId": command.task_id, "text": text}
    return Record(kind=DOCUMENTS.name, id=document_id, state=ACTIVE, owner=command.workflow_id, doc=document)


def _message(briefing: Briefing[Any]) -> str:
    name = briefing.work.definition.name if briefing.work else "work"
    return f"{name}\n\nKingdom: {briefing.command.workflow_id}"


def _report_prompt(command: commands.GenerateReport) -> str:
    sections = "\n".join(f"## {section.title}\n{section.description}".rstrip() for section in command.report_outline)
    return f"Write a report about this step in Markdown, as your whole answer, with these sections:\n\n{sections}\n"
