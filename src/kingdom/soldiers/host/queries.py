"""Send queries (prompts) and requests for reports to agents, and reply with the results and all costs."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import msgspec

from kingdom.atomic_write import write_atomically
from kingdom.bus.record import Record
from kingdom.soldiers.agent_tools.host_tools import petition_id
from kingdom.soldiers.agents.port import AgentFailed, PetitionRequest, Prompt, TurnAnswer, TurnQuestion, TurnUpdate
from kingdom.soldiers.host.command_input import CommandInput, report_document_id
from kingdom.soldiers.host.replies import (
    HostContext,
    answer_to,
    closing_reply,
    failure_answers,
    failure_reply,
    running_session,
)
from kingdom.soldiers.host.reporter import HostReply
from kingdom.soldiers.host.running_agents import AgentSession
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.turns.metered_turns import MeteredTurns
from kingdom.soldiers.turns.missing_result import request_missing_result
from kingdom.soldiers.turns.result import (
    apply_reported_status,
    is_unsuccessful,
    read_result,
    remove_unsuccessful_result,
)
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.records import ACTIVE, DOCUMENTS

QUERY_LIMIT = timedelta(minutes=10)
REPORT_LIMIT = timedelta(minutes=5)


async def send_query(context: HostContext, command_input: CommandInput[commands.SendQuery]) -> HostReply:
    """Send a prompt to the agent, or look up the outcome of a prompt that may have been sent earlier."""
    command = command_input.command
    session = running_session(context, command.work_id, command.agent_attempt)
    act = _look_up_result if command.reconcile else _send_prompt
    try:
        return await act(context, command_input, session)
    except Exception as error:  # noqa: BLE001 - any error may contain secrets that only the launch knows
        return failure_reply(command_input, error, session.launch.redaction)


async def generate_report(context: HostContext, command_input: CommandInput[commands.GenerateReport]) -> HostReply:
    """Let the agent write a report that follows its outline, and keep it as a file and a document."""
    command = command_input.command
    session = running_session(context, command.work_id, command.agent_attempt)
    try:
        return await _request_report(context, command_input, session)
    except Exception as error:  # noqa: BLE001 - as above
        return failure_reply(command_input, error, session.launch.redaction)


async def _look_up_result(
    context: HostContext, command_input: CommandInput[commands.SendQuery], session: AgentSession
) -> HostReply:
    """Look up the outcome of a prompt in the transcript."""
    command, launch = command_input.command, session.launch
    prompt_id = _prompt_id(command)
    found = await context.agents.client.inspect(launch, prompt_id)
    petitions = _PetitionForwarder(context, command, prompt_id, launch.redaction)
    for petition in found.petitions:
        petitions.forward(petition)
    finding = found.finding
    result_missing = _requires_result(command_input, session) and read_result(launch.work_space) is None
    if finding is answers.TranscriptFinding.ANSWERED and (result_missing or is_unsuccessful(launch.work_space)):
        # The engine does not know yet that the result is missing or unsuccessful. The agent reports it when it
        # continues.
        finding = answers.TranscriptFinding.UNFINISHED
    answered = finding is answers.TranscriptFinding.ANSWERED
    document = _document(command, _answer_id(command), launch.redaction.text(found.text))
    answer = answer_to(
        command,
        answers.QueryReconciled,
        finding=finding,
        response=document.id if answered else "",
        cost_usd=found.cost_usd,
    )
    return closing_reply(command_input, answer, documents=(document,) if answered else ())


async def _send_prompt(
    context: HostContext, command_input: CommandInput[commands.SendQuery], session: AgentSession
) -> HostReply:
    """Send a prompt to the agent, and wait for its answer or its question."""
    command, launch = command_input.command, session.launch
    prompt = Prompt(
        id=_prompt_id(command),
        text=_query_with_outline(command),
        continues=command.continues,
        reply=command.reply,
        budget_usd=command.budget_usd,
    )
    limit = timedelta(seconds=command.timeout_seconds) if command.timeout_seconds else QUERY_LIMIT
    remove_unsuccessful_result(launch.work_space)
    turns = MeteredTurns(session.agent, launch, limit, partial(_send_cost, context, command))
    take = partial(turns.take, on_update=_PetitionForwarder(context, command, prompt.id, launch.redaction).forward)
    ended = await take(prompt)
    if _requires_result(command_input, session):
        ended = await request_missing_result(prompt, ended, launch.work_space, take)
    end = _without_secrets(apply_reported_status(ended, launch.work_space), launch.redaction)
    if isinstance(end, TurnQuestion):
        question = answer_to(
            command, answers.AgentAsked, question=end.question, choices=end.choices, cost_usd=end.cost_usd
        )
        return _with_cost_fallback(closing_reply(command_input, question), command, end.cost_usd)
    document = _document(command, _answer_id(command), end.text)
    responded = answer_to(command, answers.QueryResponded, response=document.id, cost_usd=end.cost_usd)
    return _with_cost_fallback(closing_reply(command_input, responded, documents=(document,)), command, end.cost_usd)


async def _request_report(
    context: HostContext, command_input: CommandInput[commands.GenerateReport], session: AgentSession
) -> HostReply:
    command, redaction = command_input.command, session.launch.redaction
    await _send_earlier_costs(context, command, session)
    prompt_id = f"{command.report_id}#{command.attempt}"
    prompt = Prompt(id=prompt_id, text=_report_prompt(command), budget_usd=command.budget_usd)
    turns = MeteredTurns(session.agent, session.launch, REPORT_LIMIT, partial(_send_cost, context, command))
    petitions = _PetitionForwarder(context, command, prompt_id, redaction)
    end = _without_secrets(await turns.take(prompt, petitions.forward), redaction)
    if isinstance(end, TurnQuestion):
        raise AgentFailed("the agent asked a question instead of writing the report", end.cost_usd)
    path = f"reports/{command.report_id}-a{command.attempt}.md"
    try:
        write_atomically(context.folders.report(command.workflow_id, path), end.text)
    except OSError as error:
        raise AgentFailed(f"the report could not be written: {error}", end.cost_usd) from error
    document = _document(command, report_document_id(path), end.text)
    answer = answer_to(command, answers.ReportGenerated, file_path=path, cost_usd=end.cost_usd)
    return _with_cost_fallback(closing_reply(command_input, answer, documents=(document,)), command, end.cost_usd)


async def send_unclaimed_cost(context: HostContext, command: commands.StartAgent, meter: Meter) -> None:
    """Send the costs that the turns of an ended agent did not report."""
    await meter.is_idle.wait()
    if meter.unclaimed_usd:
        answer = answer_to(command, answers.AgentSpent, cost_usd=meter.unclaimed_usd)
        context.send(HostReply(workflow_id=command.workflow_id, answers=(answer,)))


def _requires_result(command_input: CommandInput[commands.SendQuery], session: AgentSession) -> bool:
    """Return whether the agent must leave a result: it has tools, and this is its last task."""
    work = command_input.work
    return session.launch.tools is not None and work is not None and work.tasks[-1].id == command_input.command.task_id


class _PetitionForwarder:
    """Sends an agent's petitions to the engine as they are made."""

    def __init__(
        self,
        context: HostContext,
        command: commands.SendQuery | commands.GenerateReport,
        prompt_id: str,
        redaction: Redaction,
    ) -> None:
        self._context = context
        self._command = command
        self._prompt_id = prompt_id
        self._redaction = redaction
        self._count = 0

    def forward(self, update: TurnUpdate) -> None:
        if isinstance(update, PetitionRequest):
            self._count += 1
            command = self._command
            named = petition_id(self._prompt_id, self._count)
            body = self._redaction.value(update.body)
            answer = answer_to(command, answers.AgentPetitioned, petition_id=named, kind=update.kind, body=body)
            self._context.send(HostReply(workflow_id=command.workflow_id, answers=(answer,)))


async def _send_earlier_costs(context: HostContext, command: commands.GenerateReport, session: AgentSession) -> None:
    """Send the costs of earlier attempts at a report, because a host that died may not have sent them."""
    for attempt in range(1, command.attempt):
        earlier = await context.agents.client.inspect(session.launch, f"{command.report_id}#{attempt}")
        if earlier.cost_usd:
            spent = answer_to(command, answers.AgentSpent, attempt=attempt, cost_usd=earlier.cost_usd)
            context.send(HostReply(workflow_id=command.workflow_id, answers=(spent,)))


def _send_cost(context: HostContext, command: commands.SendQuery | commands.GenerateReport, cost_usd: float) -> None:
    answer = answer_to(command, answers.AgentSpent, cost_usd=cost_usd)
    context.send(HostReply(workflow_id=command.workflow_id, answers=(answer,)))


def _prompt_id(command: commands.SendQuery) -> str:
    return f"{command.task_id}#{command.attempt}"


def _answer_id(command: commands.SendQuery) -> str:
    return f"{command.task_id}-a{command.attempt}"


def _without_secrets(end: TurnAnswer | TurnQuestion, redaction: Redaction) -> TurnAnswer | TurnQuestion:
    return msgspec.convert(redaction.value(msgspec.to_builtins(end)), type(end))


def _with_cost_fallback(reply: HostReply, command: commands.HostCommand, cost_usd: float) -> HostReply:
    """Return a reply that reports the cost even if the store rejects the rest of it."""
    return replace(reply, fallback=partial(failure_answers, command, cost_usd=cost_usd))


def _document(command: commands.SendQuery | commands.GenerateReport, document_id: str, text: str) -> Record:
    document = {"workflowId": command.workflow_id, "workId": command.work_id, "taskId": command.task_id, "text": text}
    return Record(kind=DOCUMENTS.name, id=document_id, state=ACTIVE, indexed={"run": command.workflow_id}, doc=document)


def _query_with_outline(command: commands.SendQuery) -> str:
    """Return the query, with the outline of the report so that the agent can collect what the report needs."""
    if not command.report_outline:
        return command.query
    announced = "Afterwards you are asked for a report about this step. Do not write it yet. It has these sections:"
    return f"{command.query.rstrip()}\n\n{announced}\n\n{_sections(command.report_outline)}\n"


def _report_prompt(command: commands.GenerateReport) -> str:
    sections = _sections(command.report_outline)
    return f"Write a report about this step in Markdown, as your whole answer, with these sections:\n\n{sections}\n"


def _sections(outline: Iterable[ReportSection]) -> str:
    return "\n".join(f"## {section.title}\n{section.description}".rstrip() for section in outline)
