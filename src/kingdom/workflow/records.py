"""Where runs and what they are made from are kept, and how a step becomes one transaction."""

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
from kingdom.workflow.model import events
from kingdom.workflow.model.answers import AgentPetitioned, HostAnswer, QueryFailed
from kingdom.workflow.model.catalogue import COMMAND_TYPES, EVENT_TYPES
from kingdom.workflow.model.events import DomainEvent
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.host import HostStatus
from kingdom.workflow.model.machine import WORKFLOW, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.mcp import McpServer
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.template import WorkflowTemplate
from kingdom.workflow.model.usage import Used
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.streams import told_stream

DELETED = "DELETED"
# Nothing may begin to use it while it is looked whether somebody does.
DELETING = "DELETING"
ACTIVE = "ACTIVE"
# Who says what the engine does by itself.
ENGINE = "engine"
_PAGE = 100
_RERUNS_MAX = 50
_RERUN_PAUSE_SECONDS = 0.05
_KEPT = timedelta(days=90)
# What an agent wrote is kept as long as the longest run may need it.
_DOCUMENTS_KEPT = timedelta(days=365)
_LOST_HOSTS_KEPT = timedelta(days=30)
# A checkout stays for a look at it after its run has ended.
TREES_KEPT = timedelta(hours=24)
_RELEASED_AGAIN_AFTER = timedelta(hours=24)


def _states(folder: str, *states: str) -> dict[str, str]:
    return {state: f"state/{folder}/{state.lower()}" for state in states}


WORKFLOWS = RecordKind(
    name="workflow",
    directories=_states("workflows", *WorkflowStatus, DELETED),
    final=frozenset({*WORKFLOW.final, DELETED}),
    retention=_KEPT,
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
# A lost host may come back, which stops the clock of its retention.
HOSTS = RecordKind(
    name="host",
    directories=_states("hosts", *HostStatus),
    final=frozenset({HostStatus.LOST}),
    retention=_LOST_HOSTS_KEPT,
)
# Texts that agents wrote, each for good: a report or the answer to a query, readable wherever the store is.
DOCUMENTS = RecordKind(
    name="document", directories=_states("documents", ACTIVE), final=frozenset({ACTIVE}), retention=_DOCUMENTS_KEPT
)
# What a host has taken on, until it has answered.
ACCEPTED, ANSWERED = "ACCEPTED", "ANSWERED"
COMMANDS = RecordKind(
    name="command",
    directories=_states("soldiers/commands", ACCEPTED, ANSWERED),
    final=frozenset({ANSWERED}),
    retention=timedelta(days=1),
)
# What was decided on each petition, by the id that its host gave it; kept for as long as an agent may ask.
UNDECIDED, DECIDED = "UNDECIDED", "DECIDED"
VERDICTS = RecordKind(
    name="verdict",
    directories=_states("verdicts", UNDECIDED, DECIDED),
    final=frozenset({DECIDED}),
    retention=timedelta(days=1),
)
KINDS = (WORKFLOWS, TEMPLATES, GITS, MCP_SERVERS, HOSTS, DOCUMENTS, COMMANDS, VERDICTS)

# Of these whoever asked for a run is told.
TOLD: frozenset[type[DomainEvent]] = frozenset(
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

Thing = TypeVar("Thing", WorkflowTemplate, Git, McpServer)
_T = TypeVar("_T")
_KIND_OF: dict[type, RecordKind] = {WorkflowTemplate: TEMPLATES, Git: GITS, McpServer: MCP_SERVERS}
_HINTS = {
    WORKFLOWS.name: "`kingdom workflow list` shows those there are",
    TEMPLATES.name: "`kingdom template list` shows those there are",
    GITS.name: "`kingdom git create` makes it known",
    MCP_SERVERS.name: "`kingdom mcp create` makes it known",
}


async def load_workflow(transaction: Transaction, workflow_id: str) -> tuple[Record, Workflow]:
    """Return a run as it is stored, for a step."""
    record = await _existing(transaction, WORKFLOWS.name, workflow_id)
    return record, Workflow.read(record.doc)


async def save_step(
    transaction: Transaction, step: Step, record: Record | None, actor: str, heard: HostAnswer | None = None
) -> None:
    """Store what a step made of its run, log and publish what it said, and send its commands: all or nothing.

    Whoever asked for the run is told of it too, and of what was `heard` from its host.
    """
    workflow = step.workflow
    await transaction.put(
        Record(
            kind=WORKFLOWS.name,
            id=workflow.id,
            version=record.version if record else 0,
            state=DELETED if workflow.deleted_at else workflow.status,
            # An ended run has nothing to do for its host, whose runs shall stay few.
            owner=workflow.placement.host if workflow.placement and not _is_over(workflow) else None,
            due_at=_due(step),
            doc=workflow.document(),
        )
    )
    await announce(transaction, step.events, aggregate="Workflow", key=workflow.id, actor=actor)
    if workflow.asker:
        told = [event for event in (heard, *step.events) if type(event) in TOLD]
        await transaction.publish(*(_for_asker(event, workflow) for event in told if event))
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


async def announce(
    transaction: Transaction, said: Iterable[DomainEvent], *, aggregate: str, key: str, actor: str
) -> None:
    """Log events about one thing, and publish them for whoever subscribes."""
    envelopes = [event_envelope(event, aggregate, key) for event in said]
    await transaction.append(*(log_entry(envelope, actor) for envelope in envelopes))
    await transaction.publish(*envelopes)


def event_envelope(event: DomainEvent, aggregate: str, key: str) -> Envelope:
    """Return a domain event as the bus carries it, in the order of its thing."""
    event_type = EVENT_TYPES[type(event)]
    return event_type.envelope(event, aggregate_type=aggregate, aggregate_id=key, partition_key=key)


def _for_asker(event: DomainEvent, workflow: Workflow) -> Envelope:
    envelope = event_envelope(event, "Workflow", workflow.id)
    return msgspec.structs.replace(envelope, stream=told_stream(workflow.asker))


def log_entry(envelope: Envelope, actor: str, **more: Any) -> LogEntry:
    """Return a domain event as the log keeps it."""
    return LogEntry(
        type=envelope.type,
        actor=actor,
        data={**envelope.payload, **more},
        at=envelope.occurred_at,
        trace_id=envelope.trace_id,
        aggregate_type=envelope.aggregate_type,
        aggregate_id=envelope.aggregate_id,
    )


async def load(transaction: Transaction, kind: type[Thing], thing_id: str) -> tuple[Record, Thing]:
    """Return a template, Git or McpServer as it is stored, also one that was deleted."""
    record = await _existing(transaction, _KIND_OF[kind].name, thing_id)
    return record, read_document(record.doc, kind)


async def save(transaction: Transaction, thing: Thing, record: Record | None) -> None:
    """Store a template, Git or McpServer."""
    await transaction.put(
        Record(
            kind=_KIND_OF[type(thing)].name,
            id=thing.id,
            version=record.version if record else 0,
            state=_state(thing),
            doc=msgspec.to_builtins(thing),
        )
    )


async def each(transaction: Transaction, query: RecordQuery) -> AsyncIterator[Record]:
    """Yield every record that a query matches, page by page, by id."""
    after = query.after or ""
    while True:
        page = await transaction.find(replace(query, after=after, limit=_PAGE))
        for record in page:
            yield record
        if len(page) < _PAGE:
            return
        after = page[-1].id


async def change(where: Bus | Transaction, act: Callable[[Transaction], Awaitable[_T]]) -> _T:
    """Act in a transaction of its own, again from the start where somebody changed the same records first."""
    if isinstance(where, Transaction):
        return await act(where)
    for _ in range(_RERUNS_MAX):
        try:
            async with where.transaction() as transaction:
                answer = await act(transaction)
        except Conflict:
            # Whoever was faster may be one of many.
            await asyncio.sleep(random.uniform(0, _RERUN_PAUSE_SECONDS))  # noqa: S311 - spreads load, hides nothing
        else:
            return answer
    async with where.transaction() as transaction:
        return await act(transaction)


async def _existing(transaction: Transaction, kind: str, record_id: str) -> Record:
    record = await transaction.get(kind, record_id)
    if record is None:
        raise NotFound(f"there is no {kind} {record_id!r}: {_HINTS[kind]}")
    return record


def _state(thing: WorkflowTemplate | Git | McpServer) -> str:
    if thing.deleted:
        return DELETED
    return DELETING if isinstance(thing, Used) and thing.deleting else ACTIVE


def _is_over(workflow: Workflow) -> bool:
    return workflow.status in WORKFLOW.final or workflow.deleted_at is not None


def _due(step: Step) -> datetime | None:
    """Return when the engine has something to do for a run by the clock."""
    workflow = step.workflow
    return workflow.parked_until if workflow.status is WorkflowStatus.AWAITING else _release_due(step)


def _release_due(step: Step) -> datetime | None:
    """Return when the checkouts of an ended run may go, or are tried again that could not be removed."""
    workflow = step.workflow
    kept = any(tree.status is WorkTreeStatus.READY for tree in workflow.work_trees)
    if workflow.ended_at and kept and not workflow.deleted_at:
        return workflow.ended_at + TREES_KEPT
    left = any(tree.status is WorkTreeStatus.PENDING_RELEASE and not tree.releasing for tree in workflow.work_trees)
    return step.at + _RELEASED_AGAIN_AFTER if left and _is_over(workflow) else None
