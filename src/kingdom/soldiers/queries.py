"""What agents are asked: prompts and reports, one turn or more each, of which no cost is forgotten."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import msgspec

from kingdom.atomic_write import write_atomically
from kingdom.bus.record import Record
from kingdom.soldiers.agent import AgentFailed, Answered, Asked, Petitioned, Prompt, Update
from kingdom.soldiers.agents import Session
from kingdom.soldiers.answering import Tools, answer, failure, said_of, session_of
from kingdom.soldiers.briefing import Briefing, document_of
from kingdom.soldiers.paid_turns import PaidTurns
from kingdom.soldiers.reporter import Statement
from kingdom.soldiers.result import as_reported, forget_refusal, is_refusal, read_result
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.spoken import demand_result
from kingdom.soldiers.voice.house import petition_id
from kingdom.workflow.model import answers, commands
from kingdom.workflow.records import ACTIVE, DOCUMENTS

QUERY_LIMIT = timedelta(minutes=10)
REPORT_LIMIT = timedelta(minutes=5)


async def send_query(tools: Tools, briefing: Briefing[commands.SendQuery]) -> Statement:
    """Give a prompt to the agent, or look up what became of an earlier one."""
    command = briefing.command
    session = session_of(tools, command.work_id, command.agent_attempt)
    space = session.launch.work_space
    prompt_id = f"{command.task_id}#{command.attempt}"
    if command.reconcile:
        found = await tools.agents.client.inspect(session.launch, prompt_id)
        petitions = _Petitions(tools, command, prompt_id)
        for petition in found.petitions:
            petitions.hear(petition)
        document = _document(command, f"{command.task_id}-a{command.attempt}", found.text)
        finding = found.finding
        owes = _owes_result(briefing, session) and read_result(space) is None
        if finding is answers.Finding.ANSWERED and (owes or is_refusal(space)):
            # Nobody has heard yet what it reported, or that it reported nothing: it tells when it goes on.
            finding = answers.Finding.UNFINISHED
        answered = finding is answers.Finding.ANSWERED
        said = answer(
            command,
            answers.QueryReconciled,
            finding=finding,
            response=document.id if answered else "",
            cost_usd=found.cost_usd,
        )
        return said_of(briefing, said, documents=(document,) if answered else ())
    prompt = Prompt(
        id=prompt_id,
        text=command.query,
        continues=command.continues,
        reply=command.reply,
        budget_usd=command.budget_usd,
    )
    limit = timedelta(seconds=command.timeout_seconds) if command.timeout_seconds else QUERY_LIMIT
    forget_refusal(space)
    turns = PaidTurns(session.agent, session.launch, limit, partial(_say_spent, tools, command))
    take = partial(turns.take, hear=_Petitions(tools, command, prompt_id).hear)
    ended = await take(prompt)
    if _owes_result(briefing, session):
        ended = await demand_result(prompt, ended, space, take)
    end = _without_secrets(as_reported(ended, space), session)
    if isinstance(end, Asked):
        asked = answer(command, answers.AgentAsked, question=end.question, choices=end.choices, cost_usd=end.cost_usd)
        return _paid(said_of(briefing, asked), command, end.cost_usd)
    document = _document(command, f"{command.task_id}-a{command.attempt}", end.text)
    responded = answer(command, answers.QueryResponded, response=document.id, cost_usd=end.cost_usd)
    return _paid(said_of(briefing, responded, documents=(document,)), command, end.cost_usd)


async def generate_report(tools: Tools, briefing: Briefing[commands.GenerateReport]) -> Statement:
    """Have the agent write a report along its outline, and keep it as a file and as a document."""
    command = briefing.command
    session = session_of(tools, command.work_id, command.agent_attempt)
    await _say_earlier_costs(tools, command, session)
    prompt_id = f"{command.report_id}#{command.attempt}"
    prompt = Prompt(id=prompt_id, text=_report_prompt(command), budget_usd=command.budget_usd)
    turns = PaidTurns(session.agent, session.launch, REPORT_LIMIT, partial(_say_spent, tools, command))
    end = _without_secrets(await turns.take(prompt, _Petitions(tools, command, prompt_id).hear), session)
    if isinstance(end, Asked):
        raise AgentFailed("the agent asked a question instead of writing the report", end.cost_usd)
    path = f"reports/{command.report_id}-a{command.attempt}.md"
    try:
        write_atomically(tools.folders.report(command.workflow_id, path), end.text)
    except OSError as error:
        raise AgentFailed(f"the report could not be written: {error}", end.cost_usd) from error
    document = _document(command, document_of(path), end.text)
    said = answer(command, answers.ReportGenerated, file_path=path, cost_usd=end.cost_usd)
    return _paid(said_of(briefing, said, documents=(document,)), command, end.cost_usd)


async def say_rest(tools: Tools, command: commands.StartAgent, meter: Meter) -> None:
    """Tell what an agent that is gone has cost beside all that its turns have told."""
    await meter.is_idle.wait()
    if meter.unclaimed_usd:
        said = answer(command, answers.AgentSpent, cost_usd=meter.unclaimed_usd)
        tools.say(Statement(workflow_id=command.workflow_id, answers=(said,)))


def _owes_result(briefing: Briefing[commands.SendQuery], session: Session) -> bool:
    """Tell whether this is the last that an agent with a voice is asked: it must leave a result."""
    work = briefing.work
    return session.launch.voice is not None and work is not None and work.tasks[-1].id == briefing.command.task_id


class _Petitions:
    """Says what an agent requests on the way to its answer."""

    def __init__(self, tools: Tools, command: commands.SendQuery | commands.GenerateReport, prompt_id: str) -> None:
        self._tools = tools
        self._command = command
        self._prompt_id = prompt_id
        self._count = 0

    def hear(self, update: Update) -> None:
        if isinstance(update, Petitioned):
            self._count += 1
            command = self._command
            named = petition_id(self._prompt_id, self._count)
            said = answer(command, answers.AgentPetitioned, petition_id=named, kind=update.kind, body=update.body)
            self._tools.say(Statement(workflow_id=command.workflow_id, answers=(said,)))


async def _say_earlier_costs(tools: Tools, command: commands.GenerateReport, session: Session) -> None:
    """Tell what earlier attempts at a report have cost: a host that died in one has told nobody."""
    for attempt in range(1, command.attempt):
        earlier = await tools.agents.client.inspect(session.launch, f"{command.report_id}#{attempt}")
        if earlier.cost_usd:
            spent = answer(command, answers.AgentSpent, attempt=attempt, cost_usd=earlier.cost_usd)
            tools.say(Statement(workflow_id=command.workflow_id, answers=(spent,)))


def _say_spent(tools: Tools, command: commands.SendQuery | commands.GenerateReport, cost_usd: float) -> None:
    said = answer(command, answers.AgentSpent, cost_usd=cost_usd)
    tools.say(Statement(workflow_id=command.workflow_id, answers=(said,)))


def _without_secrets(end: Answered | Asked, session: Session) -> Answered | Asked:
    return msgspec.convert(session.launch.redaction.value(msgspec.to_builtins(end)), type(end))


def _paid(statement: Statement, command: commands.Command, cost_usd: float) -> Statement:
    """Return a statement that tells the cost also where no store can keep the rest of it."""
    return replace(statement, otherwise=partial(failure, command, cost_usd=cost_usd))


def _document(command: commands.SendQuery | commands.GenerateReport, document_id: str, text: str) -> Record:
    document = {"workflowId": command.workflow_id, "workId": command.work_id, "taskId": command.task_id, "text": text}
    return Record(kind=DOCUMENTS.name, id=document_id, state=ACTIVE, owner=command.workflow_id, doc=document)


def _report_prompt(command: commands.GenerateReport) -> str:
    sections = "\n".join(f"## {section.title}\n{section.description}".rstrip() for section in command.report_outline)
    return f"Write a report about this step in Markdown, as your whole answer, with these sections:\n\n{sections}\n"
