"""The record kinds of runs and resources, and functions that load and save them."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document
from kingdom.errors import Conflict, NotFound
from kingdom.workflow.model.messages import events
from kingdom.workflow.model.messages.answers import AgentPetitioned, HostAnswer, QueryFailed
from kingdom.workflow.model.messages.catalog import COMMAND_TYPES, EVENT_TYPES
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.resources.registered_resource import RegisteredResource
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORKFLOW, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.streams import requester_stream

DELETED = "DELETED"
# In this state, no run can start to use a resource, because its deletion is looking for runs that use it.
DELETING = "DELETING"
ACTIVE = "ACTIVE"
# The actor in log entries about actions that the engine takes by itself.
ENGINE = "engine"
PAGE_SIZE = 100
_RERUNS_MAX = 50
_RERUN_PAUSE_SECONDS = 0.05
_KEPT = timedelta(days=90)
# Documents of agents are kept as long as the longest run may need them.
_DOCUMENTS_KEPT = timedelta(days=365)
_LOST_HOSTS_KEPT = timedelta(days=30)
# For this time after the files of an ended run are needed, people can still inspect its checkouts.
TREES_KEPT = timedelta(hours=24)
_RELEASE_RETRY_AFTER = timedelta(hours=24)


def _states(folder: str, *states: str) -> dict[str, str]:
    return {state: f"state/{folder}/{state.lower()}" for state in states}


WORKFLOWS = RecordKind(
    name="workflow",
    directories=_states("workflows", *WorkflowStatus, DELETED),
    final=frozenset({*WORKFLOW.final, DELETED}),
    retention=_KEPT,
    indexes=("host",),
)
TEMPLATES = RecordKind(
    name="template", directories=_states("templates", ACTIVE, DELETED), final=frozenset({DELETED}), retention=_KEPT
)
GITS = RecordKind(
    name="git", directories=_states("gits", ACTIVE, DELETING, DELETED), final=frozenset({DELETED}), retention=_KEPT
)
MCP_SERVERS = RecordKind(
    name="mcp-server",
    directories=_states("mcp-servers", ACTIVE, DELETING, DELETED),
    final=frozenset({DELETED}),
    retention=_KEPT,
)
# LOST is final only for retention: a lost host can register again, and its record is then kept.
HOSTS = RecordKind(
    name="host",
    directories=_states("hosts", *HostStatus),
    final=frozenset({HostStatus.LOST}),
    retention=_LOST_HOSTS_KEPT,
)
# Immutable texts of agents: reports and answers to prompts.
DOCUMENTS = RecordKind(
    name="document",
    directories=_states("documents", ACTIVE),
    final=frozenset({ACTIVE}),
    retention=_DOCUMENTS_KEPT,
    indexes=("run",),
)
# The kind and state of the records in which hosts store the results of agents. The court declares the kind.
RESULT, RESULT_STATE = "result", "ended"
# Commands that a host has accepted. A command becomes ANSWERED when the host has answered it.
ACCEPTED, ANSWERED = "ACCEPTED", "ANSWERED"
COMMANDS = RecordKind(
    name="command",
    directories=_states("soldiers/commands", ACCEPTED, ANSWERED),
    final=frozenset({ANSWERED}),
    retention=timedelta(days=1),
    indexes=("host",),
)
# The verdict on each petition. It is kept as long as the agent may ask for it.
UNDECIDED, DECIDED = "UNDECIDED", "DECIDED"
VERDICTS = RecordKind(
    name="verdict",
    directories=_states("verdicts", UNDECIDED, DECIDED),
    final=frozenset({DECIDED}),
    retention=timedelta(days=1),
)
# Results of ended assignments, for the prompts and agents of later runs.
PAST_RESULTS = RecordKind(
    name="past-result",
    directories=_states("past-results", ACTIVE),
    final=frozenset({ACTIVE}),
    retention=timedelta(days=7),
    indexes=("repo", "general_repo", "general_subject"),
)
KINDS = (WORKFLOWS, TEMPLATES, GITS, MCP_SERVERS, HOSTS, DOCUMENTS, COMMANDS, VERDICTS, PAST_RESULTS)

# The requester of a run gets these events.
REQUESTER_EVENTS: frozenset[type[DomainEvent]] = frozenset(
    {
        AgentPetitioned,
        QueryFailed,
        events.WorkStarted,
        events.WorkCompleted,
        events.WorkflowAwaiting,
        events.WorkflowResumed,
        events.WorkflowCompleted,
        events.WorkflowFailed,
        events.WorkflowCancelled,
        events.WorkflowCostCorrected,
    }
)

Resource = TypeVar("Resource", WorkflowTemplate, Git, McpServer)
_T = TypeVar("_T")
_RECORD_KINDS: dict[type, RecordKind] = {WorkflowTemplate: TEMPLATES, Git: GITS, McpServer: MCP_SERVERS}
_HINTS = {
    WORKFLOWS.name: "see `kingdom workflow list`",
    TEMPLATES.name: "see `kingdom template list`",
    GITS.name: "register it with `kingdom git create`",
    MCP_SERVERS.name: "register it with `kingdom mcp create`",
}


async def load_workflow(transaction: Transaction, workflow_id: str) -> tuple[Record, Workflow]:
    """Return a run and its record."""
    record = await _existing(transaction, WORKFLOWS.name, workflow_id)
    return record, Workflow.read(record.doc)


async def is_session_in_use(transaction: Transaction, workflow: Workflow) -> bool:
    """Return whether a later run that has not ended goes on with the session of a run, so it may need its files."""
    while workflow.continued_by:
        record = await transaction.get(WORKFLOWS.name, workflow.continued_by)
        if record is None:
            return False
        workflow = Workflow.read(record.doc)
        if not workflow.is_over:
            return True
    return False


async def save_step(
    transaction: Transaction, step: Step, record: Record | None, actor: str, answer: HostAnswer | None = None
) -> None:
    """Store the run of a step, log and publish its events, and send its commands.

    The requester of the run also gets events of the step, and the `answer` that caused it (see REQUESTER_EVENTS).
    """
    workflow = step.workflow
    await transaction.put(
        Record(
            kind=WORKFLOWS.name,
            id=workflow.id,
            version=record.version if record else 0,
            state=DELETED if workflow.deleted_at else workflow.status,
            indexed=_indexed(workflow),
            due_at=_due(step),
            doc=workflow.document(),
        )
    )
    await publish_events(transaction, step.events, aggregate="Workflow", key=workflow.id, actor=actor)
    if workflow.requester:
        events_for_requester = [event for event in (answer, *step.events) if type(event) in REQUESTER_EVENTS]
        await transaction.publish(*(_requester_envelope(event, workflow) for event in events_for_requester if event))
    await transaction.publish(
        *(
            COMMAND_TYPES[type(command)].envelope(
                command,
                stream=command.stream,
                partition_key=workflow.id,
                aggregate_type="Workflow",
                aggregate_id=workflow.id,
            )
            for command in step.commands
        )
    )


async def publish_events(
    transaction: Transaction, domain_events: Iterable[DomainEvent], *, aggregate: str, key: str, actor: str
) -> None:
    """Log events of one aggregate and publish them to their subscribers."""
    envelopes = [event_envelope(event, aggregate, key) for event in domain_events]
    await transaction.append(*(log_entry(envelope, actor) for envelope in envelopes))
    await transaction.publish(*envelopes)


def event_envelope(event: DomainEvent, aggregate: str, key: str) -> Envelope:
    """Return the envelope of a domain event. Events of one aggregate stay in order."""
    event_type = EVENT_TYPES[type(event)]
    return event_type.envelope(event, aggregate_type=aggregate, aggregate_id=key, partition_key=key)


def _requester_envelope(event: DomainEvent, workflow: Workflow) -> Envelope:
    envelope = event_envelope(event, "Workflow", workflow.id)
    return msgspec.structs.replace(envelope, stream=requester_stream(workflow.requester))


def log_entry(envelope: Envelope, actor: str, **more: Any) -> LogEntry:
    """Return the log entry of a domain event."""
    return LogEntry(
        type=envelope.type,
        actor=actor,
        data={**envelope.payload, **more},
        at=envelope.occurred_at,
        trace_id=envelope.trace_id,
        aggregate_type=envelope.aggregate_type,
        aggregate_id=envelope.aggregate_id,
    )


async def load_resource(transaction: Transaction, kind: type[Resource], resource_id: str) -> tuple[Record, Resource]:
    """Return a template, Git resource or McpServer, even a deleted one, and its record."""
    record = await _existing(transaction, _RECORD_KINDS[kind].name, resource_id)
    return record, read_document(record.doc, kind)


async def save_resource(transaction: Transaction, resource: Resource, record: Record | None) -> None:
    """Store a template, Git resource or McpServer."""
    await transaction.put(
        Record(
            kind=_RECORD_KINDS[type(resource)].name,
            id=resource.id,
            version=record.version if record else 0,
            state=_state(resource),
            doc=msgspec.to_builtins(resource),
        )
    )


async def each_record(transaction: Transaction, query: RecordQuery) -> AsyncIterator[Record]:
    """Yield every record of a query in its order of ids, page by page."""
    after = query.after
    while True:
        page = await transaction.find(replace(query, after=after, limit=PAGE_SIZE))
        for record in page:
            yield record
        if len(page) < PAGE_SIZE:
            return
        after = page[-1].id


async def run_transaction(where: Bus | Transaction, act: Callable[[Transaction], Awaitable[_T]]) -> _T:
    """Call `act` in a new transaction, and repeat it after a conflict. If `where` is a transaction, use it instead."""
    if isinstance(where, Transaction):
        return await act(where)
    for _ in range(_RERUNS_MAX):
        try:
            async with where.transaction() as transaction:
                result = await act(transaction)
        except Conflict:
            # Many writers may compete, so the pause is random.
            await asyncio.sleep(random.uniform(0, _RERUN_PAUSE_SECONDS))  # noqa: S311 - spreads load, no security
        else:
            return result
    async with where.transaction() as transaction:
        return await act(transaction)


async def _existing(transaction: Transaction, kind: str, record_id: str) -> Record:
    record = await transaction.get(kind, record_id)
    if record is None:
        raise NotFound(f"there is no {kind} {record_id!r}: {_HINTS[kind]}")
    return record


def _state(resource: WorkflowTemplate | Git | McpServer) -> str:
    if resource.deleted:
        return DELETED
    return DELETING if isinstance(resource, RegisteredResource) and resource.deleting else ACTIVE


def _indexed(workflow: Workflow) -> dict[str, str]:
    # A host lists its runs. It has nothing to do for an ended run, so such a run is not listed.
    return {"host": workflow.placement.host} if workflow.placement and not workflow.is_over else {}


def _due(step: Step) -> datetime | None:
    """Return the time at which the timers of the engine must act on a run."""
    workflow = step.workflow
    return workflow.parked_until if workflow.status is WorkflowStatus.AWAITING else _release_due(step)


def _release_due(step: Step) -> datetime | None:
    """Return the time at which the checkouts of an ended run are released, or a failed release is retried."""
    workflow = step.workflow
    has_checkout = any(tree.status is WorkTreeStatus.READY for tree in workflow.work_trees)
    if workflow.needed_until and has_checkout and not workflow.deleted_at:
        return workflow.needed_until + TREES_KEPT
    failed = any(tree.status is WorkTreeStatus.PENDING_RELEASE and not tree.releasing for tree in workflow.work_trees)
    return step.at + _RELEASE_RETRY_AFTER if failed and workflow.is_over else None
