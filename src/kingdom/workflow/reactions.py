"""The engine: tables of the events that it receives, each with its reaction.

The engine receives only answers of hosts, and events about hosts, resources and displaced runs. It does not receive
events such as WorkStarted or TaskCompleted: the step that emits them also acts on them (`proceed`).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from kingdom.bus.app import Application
from kingdom.bus.event import Event
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordKind, RecordQuery, read_documents
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.errors import NotFound, Unreadable
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.catalog import EVENT_TYPES
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.steps import answer_handlers
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.records import (
    ACTIVE,
    ENGINE,
    GITS,
    KINDS,
    MCP_SERVERS,
    TEMPLATES,
    WORKFLOWS,
    each_record,
    load_workflow,
    log_entry,
    publish_events,
    save_resource,
    save_step,
)
from kingdom.workflow.relocation import (
    choose_host_for,
    displace_runs,
    displace_stranded_runs,
    finish_stop_on_lost_host,
    waits_for_host,
)
from kingdom.workflow.streams import REGISTRY_STREAM, TOPOLOGY, WORKFLOW_STREAM
from kingdom.workflow.verdicts import PetitionVerdict, load_verdict, save_verdict

_log = structlog.get_logger("kingdom.workflow")

# Each handler takes one step of a run.
ANSWERS: Mapping[type[answers.HostAnswer], Callable[[Step, Any], None]] = {
    answers.WorkTreeCreated: answer_handlers.on_work_tree_created,
    answers.WorkTreeFailed: answer_handlers.on_work_tree_failed,
    answers.WorkTreeReleased: answer_handlers.on_work_tree_released,
    answers.WorkTreeReleaseFailed: answer_handlers.on_work_tree_release_failed,
    answers.WorkSpaceCreated: answer_handlers.on_work_space_created,
    answers.AgentStarted: answer_handlers.on_agent_started,
    answers.AgentStopped: answer_handlers.on_agent_stopped,
    answers.AgentError: answer_handlers.on_agent_error,
    answers.AgentAsked: answer_handlers.on_agent_asked,
    answers.AgentSpent: answer_handlers.on_agent_spent,
    answers.AgentPetitioned: answer_handlers.on_agent_petitioned,
    answers.QueryResponded: answer_handlers.on_query_responded,
    answers.QueryFailed: answer_handlers.on_query_failed,
    answers.QueryReconciled: answer_handlers.on_query_reconciled,
    answers.ReportGenerated: answer_handlers.on_report_generated,
    answers.ReportFailed: answer_handlers.on_report_failed,
    answers.WorkVerified: answer_handlers.on_work_verified,
    answers.VerifyFailed: answer_handlers.on_verify_failed,
    answers.CheckpointCreated: answer_handlers.on_checkpoint_created,
    answers.CheckpointFailed: answer_handlers.on_checkpoint_failed,
    answers.RolledBack: answer_handlers.on_rolled_back,
    answers.RollBackFailed: answer_handlers.on_roll_back_failed,
}


async def place_displaced_run(received: Event[events.WorkflowDisplaced], transaction: Transaction) -> None:
    """Place a displaced run on a host. If no host can take the run, the run waits for its lost host."""
    lost = received.payload
    record, workflow = await load_workflow(transaction, lost.workflow_id)
    lost_placement = Placement(host=lost.host, epoch=lost.epoch)
    if workflow.placement != lost_placement or workflow.status in workflow.machine.final or workflow.deleted_at:
        return
    step = Step(workflow, at=received.envelope.occurred_at)
    host = await choose_host_for(transaction, workflow)
    if host and waits_for_host(workflow):
        place(step, Placement(host=host.id, epoch=lost.epoch + 1))
    else:
        await finish_stop_on_lost_host(transaction, step)
    if step.events:
        await save_step(transaction, step, record, ENGINE)


async def on_host_registered(received: Event[events.HostRegistered], transaction: Transaction) -> None:
    """Displace the runs that a host had before it restarted, and runs of lost hosts that now fit on a host."""
    host = received.payload
    displaced = await displace_runs(transaction, host.host, host.epoch, f"{host.host} restarted")
    await displace_stranded_runs(transaction, slots_taken=displaced)


async def on_host_lost(received: Event[events.HostLost], transaction: Transaction) -> None:
    """Displace the runs of a lost host."""
    lost = received.payload
    await displace_runs(transaction, lost.host, lost.epoch, f"{lost.host} is lost")


async def on_host_runs_left(received: Event[events.HostRunsLeft], transaction: Transaction) -> None:
    """Displace the next runs of a host with too many runs for one transaction."""
    left = received.payload
    await displace_runs(transaction, left.host, left.epoch, left.reason, left.after)


async def on_git_deleted(received: Event[events.GitDeleted], transaction: Transaction) -> None:
    """Remove a deleted Git resource from every template."""
    git_id = received.payload.git_id
    await _update_templates(transaction, GITS, git_id, lambda template: template.without_git(git_id))


async def on_mcp_server_unregistered(received: Event[events.McpServerUnregistered], transaction: Transaction) -> None:
    """Remove an unregistered McpServer from every template."""
    server_id = received.payload.mcp_server_id
    await _update_templates(
        transaction, MCP_SERVERS, server_id, lambda template: template.without_mcp_server(server_id)
    )


REACTIONS: Mapping[type[DomainEvent], Callable[[Event[Any], Transaction], Awaitable[None]]] = {
    events.WorkflowDisplaced: place_displaced_run,
    events.HostRegistered: on_host_registered,
    events.HostLost: on_host_lost,
    events.HostRunsLeft: on_host_runs_left,
    events.GitDeleted: on_git_deleted,
    events.McpServerUnregistered: on_mcp_server_unregistered,
}


async def apply_answer(received: Event[answers.HostAnswer], transaction: Transaction) -> None:
    """Apply the answer of a host to its run. A stale answer is logged, and only its cost is applied."""
    answer, envelope = received.payload, received.envelope
    try:
        record, workflow = await load_workflow(transaction, envelope.aggregate_id)
    except NotFound as error:
        await transaction.append(log_entry(envelope, answer.host, ignored=str(error)))
        return
    step = Step(workflow, at=envelope.occurred_at)
    known_cost = workflow.cost_usd
    ANSWERS[type(answer)](step, answer)
    if isinstance(answer, answers.AgentPetitioned):
        await _refuse_undecided(transaction, answer, step)
    if step.ignored:
        await transaction.append(log_entry(envelope, answer.host, ignored=step.ignored))
        if workflow.cost_usd != known_cost:
            step.emit(events.WorkflowCostCorrected(workflow_id=workflow.id, cost_usd=workflow.cost_usd))
            await save_step(transaction, step, record, ENGINE)
        return
    await transaction.append(log_entry(envelope, answer.host))
    await save_step(transaction, step, record, ENGINE, answer=answer)


def engine() -> Application:
    """Return the engine as an application for a worker."""
    dispatcher = Dispatcher()
    for answer in ANSWERS:
        dispatcher.reaction(EVENT_TYPES[answer], stream=WORKFLOW_STREAM.name, reads=WORKFLOWS.name)(apply_answer)
    for event, reaction in REACTIONS.items():
        stream = WORKFLOW_STREAM if event is events.WorkflowDisplaced else REGISTRY_STREAM
        dispatcher.reaction(EVENT_TYPES[event], stream=stream.name)(reaction)
    return Application(TOPOLOGY, dispatcher, KINDS)


async def _refuse_undecided(transaction: Transaction, petition: answers.AgentPetitioned, step: Step) -> None:
    """Refuse a petition that will never be decided, unless it has a verdict already."""
    without_general = "petitions are decided only for runs of a General, and a person started this run"
    reason = step.ignored or ("" if step.workflow.requester else without_general)
    if reason and await load_verdict(transaction, petition.petition_id) is None:
        await save_verdict(transaction, petition.petition_id, PetitionVerdict(granted=False, reason=reason))


async def _update_templates(
    transaction: Transaction,
    kind: RecordKind,
    resource_id: str,
    change: Callable[[WorkflowTemplate], tuple[WorkflowTemplate, events.WorkflowTemplateUpdated | None]],
) -> None:
    """Remove a deleted resource from every readable template, unless it was created again in the meantime."""
    resource = await transaction.get(kind.name, resource_id)
    if resource and resource.state == ACTIVE:
        return
    async for record in each_record(transaction, RecordQuery(kind=TEMPLATES.name, state=ACTIVE)):
        for template in read_documents([record], WorkflowTemplate, _log_unreadable):
            changed, event = change(template)
            if event:
                await save_resource(transaction, changed, record)
                await publish_events(transaction, [event], aggregate="WorkflowTemplate", key=template.id, actor=ENGINE)


def _log_unreadable(template_id: str, error: Unreadable) -> None:
    _log.warning(
        "a template cannot be read and keeps its references to a deleted resource",
        template=template_id,
        error=str(error),
    )
