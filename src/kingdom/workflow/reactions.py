"""ONE table: what follows from each event.

Statuses are derived in the transaction that changes them, and a run is one record: so WorkStarted, TaskCompleted,
WorkCompleted, WorkflowCompleted and their like are said by the very step that acts on them (`proceed`), and stand in
the log for whoever watches. What arrives from outside a step, from a host or about one, arrives here.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from kingdom.bus.app import Application
from kingdom.bus.event import Event
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordKind, RecordQuery
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.errors import NotFound
from kingdom.workflow.displacement import (
    displace_runs,
    displace_stranded_runs,
    host_for,
    settle_with_lost_host,
    waits_for_host,
)
from kingdom.workflow.model import answers, events, progress
from kingdom.workflow.model.catalogue import EVENT_TYPES
from kingdom.workflow.model.events import DomainEvent
from kingdom.workflow.model.placement import place
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.template import WorkflowTemplate
from kingdom.workflow.model.workflow import Placement
from kingdom.workflow.records import (
    ACTIVE,
    ENGINE,
    GITS,
    KINDS,
    MCP_SERVERS,
    TEMPLATES,
    WORKFLOWS,
    announce,
    each,
    load_workflow,
    log_entry,
    save,
    save_step,
)
from kingdom.workflow.streams import REGISTRY, TOPOLOGY, WORKFLOW_STREAM
from kingdom.workflow.verdicts import Verdict, load_verdict, save_verdict

# Each takes a step of one run.
ANSWERS: Mapping[type[answers.HostAnswer], Callable[[Step, Any], None]] = {
    answers.WorkTreeCreated: progress.work_tree_created,
    answers.WorkTreeFailed: progress.work_tree_failed,
    answers.WorkTreeReleased: progress.work_tree_released,
    answers.WorkTreeReleaseFailed: progress.work_tree_release_failed,
    answers.WorkSpaceCreated: progress.work_space_created,
    answers.AgentStarted: progress.agent_started,
    answers.AgentStopped: progress.agent_stopped,
    answers.AgentError: progress.agent_error,
    answers.AgentAsked: progress.agent_asked,
    answers.AgentSpent: progress.agent_spent,
    answers.AgentPetitioned: progress.agent_petitioned,
    answers.QueryResponded: progress.query_responded,
    answers.QueryFailed: progress.query_failed,
    answers.QueryReconciled: progress.query_reconciled,
    answers.ReportGenerated: progress.report_generated,
    answers.ReportFailed: progress.report_failed,
    answers.WorkVerified: progress.work_verified,
    answers.VerifyFailed: progress.verify_failed,
    answers.CheckpointCreated: progress.checkpoint_created,
    answers.CheckpointFailed: progress.checkpoint_failed,
    answers.RolledBack: progress.rolled_back,
    answers.RollBackFailed: progress.roll_back_failed,
}


async def find_placement(received: Event[events.WorkflowDisplaced], transaction: Transaction) -> None:
    """Place a run anew; one that no host can take waits for its own."""
    lost = received.payload
    record, workflow = await load_workflow(transaction, lost.workflow_id)
    over = Placement(host=lost.host, epoch=lost.epoch)
    if workflow.placement != over or workflow.status in workflow.machine.final or workflow.deleted_at:
        return
    step = Step(workflow, at=received.envelope.occurred_at)
    host = await host_for(transaction, workflow)
    if host and waits_for_host(workflow):
        place(step, Placement(host=host.id, epoch=lost.epoch + 1))
    else:
        await settle_with_lost_host(transaction, step)
    if step.events:
        await save_step(transaction, step, record, ENGINE)


async def host_began_anew(received: Event[events.HostRegistered], transaction: Transaction) -> None:
    """Let what ran on a host before go on, and what was left by lost hosts go on there."""
    host = received.payload
    own = await displace_runs(transaction, host.host, host.epoch, f"{host.host} began anew")
    await displace_stranded_runs(transaction, taken=own)


async def host_lost(received: Event[events.HostLost], transaction: Transaction) -> None:
    """Let the runs of a lost host find another one."""
    lost = received.payload
    await displace_runs(transaction, lost.host, lost.epoch, f"{lost.host} is lost")


async def host_runs_left(received: Event[events.HostRunsLeft], transaction: Transaction) -> None:
    """Go on with the runs of a host that has too many for one transaction."""
    left = received.payload
    await displace_runs(transaction, left.host, left.epoch, left.reason, left.after)


async def git_deleted(received: Event[events.GitDeleted], transaction: Transaction) -> None:
    """Take a deleted Git out of every template."""
    git_id = received.payload.git_id
    await _cascade(transaction, GITS, git_id, lambda template: template.without_git(git_id))


async def mcp_server_unregistered(received: Event[events.McpServerUnregistered], transaction: Transaction) -> None:
    """Take an unregistered McpServer out of every template."""
    server_id = received.payload.mcp_server_id
    await _cascade(transaction, MCP_SERVERS, server_id, lambda template: template.without_mcp_server(server_id))


REACTIONS: Mapping[type[DomainEvent], Callable[[Event[Any], Transaction], Awaitable[None]]] = {
    events.WorkflowDisplaced: find_placement,
    events.HostRegistered: host_began_anew,
    events.HostLost: host_lost,
    events.HostRunsLeft: host_runs_left,
    events.GitDeleted: git_deleted,
    events.McpServerUnregistered: mcp_server_unregistered,
}


async def take_step(received: Event[answers.HostAnswer], transaction: Transaction) -> None:
    """Let what a host says take its run a step further; of what does not count only the cost does, and it is logged."""
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
            step.say(events.WorkflowCostCorrected(workflow_id=workflow.id, cost_usd=workflow.cost_usd))
            await save_step(transaction, step, record, ENGINE)
        return
    await transaction.append(log_entry(envelope, answer.host))
    await save_step(transaction, step, record, ENGINE, heard=answer)


def engine() -> Application:
    """Return the engine as a worker runs it."""
    dispatcher = Dispatcher()
    for answer in ANSWERS:
        dispatcher.reaction(EVENT_TYPES[answer], stream=WORKFLOW_STREAM.name, reads=WORKFLOWS.name)(take_step)
    for event, reaction in REACTIONS.items():
        stream = WORKFLOW_STREAM if event is events.WorkflowDisplaced else REGISTRY
        dispatcher.reaction(EVENT_TYPES[event], stream=stream.name)(reaction)
    return Application(TOPOLOGY, dispatcher, KINDS)


async def _refuse_undecided(transaction: Transaction, petition: answers.AgentPetitioned, step: Step) -> None:
    """Let an agent know of a petition that nobody will decide on; what was decided before stays so."""
    reason = step.ignored or ("" if step.workflow.asker else "nobody decides on petitions of a run started by hand")
    if reason and await load_verdict(transaction, petition.petition_id) is None:
        await save_verdict(transaction, petition.petition_id, Verdict(granted=False, reason=reason))


async def _cascade(
    transaction: Transaction,
    kind: RecordKind,
    thing_id: str,
    change: Callable[[WorkflowTemplate], tuple[WorkflowTemplate, events.WorkflowTemplateUpdated | None]],
) -> None:
    """Change every template that refers to a deleted thing, unless it was made again meanwhile."""
    thing = await transaction.get(kind.name, thing_id)
    if thing and thing.state == ACTIVE:
        return
    async for record in each(transaction, RecordQuery(kind=TEMPLATES.name, state=ACTIVE)):
        template = msgspec.convert(record.doc, WorkflowTemplate)
        changed, said = change(template)
        if said:
            await save(transaction, changed, record)
            await announce(transaction, [said], aggregate="WorkflowTemplate", key=template.id, actor=ENGINE)
