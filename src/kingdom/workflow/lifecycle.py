"""What people and the court ask of runs: each is one transaction, and refused with what is allowed instead.

Whoever is in a transaction already hands that in, and it all happens there; with a bus it is one of its own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.clock import utc_now
from kingdom.errors import IllegalTransition, Transient
from kingdom.ids import new_id
from kingdom.workflow.displacement import host_for, settle_with_lost_host
from kingdom.workflow.model import modify as modifying
from kingdom.workflow.model import operations
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.machine import WORKFLOW, WorkflowStatus
from kingdom.workflow.model.mcp import McpServer
from kingdom.workflow.model.placement import place
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.template import WorkflowTemplate
from kingdom.workflow.model.workflow import Placement, Workflow
from kingdom.workflow.records import DELETED, ENGINE, WORKFLOWS, change, load, load_workflow, save_step

_log = structlog.get_logger("kingdom.workflow")


async def create(where: Bus | Transaction, template_id: str, *, actor: str, name: str = "") -> Workflow:
    """Make a run from a template; it owes the template nothing afterwards."""

    async def act(transaction: Transaction) -> Workflow:
        _, template = await load(transaction, WorkflowTemplate, template_id)
        step = operations.create(template, new_id("wf"), utc_now(), name=name)
        await _check_resources(transaction, step.workflow)
        await save_step(transaction, step, None, actor)
        return step.workflow

    return await change(where, act)


async def run(
    transaction: Transaction,
    template: WorkflowTemplate,
    workflow_id: str,
    *,
    actor: str,
    name: str = "",
    asker: str = "",
    general: str = "",
) -> Workflow:
    """Make a run from a template at hand and start it, all in one step; where that fails, nothing was written."""
    step = operations.create(template, workflow_id, utc_now(), name=name, asker=asker, general=general)
    await _find_host(transaction, step)
    operations.start(step)
    await _check_resources(transaction, step.workflow)
    await save_step(transaction, step, None, actor)
    return step.workflow


async def prepare(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Have the checkouts of a run made, and let it rest at READY."""
    return await _take(where, workflow_id, actor, operations.prepare, begins="prepare", takes_resources=True)


async def start(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Run; what is not prepared yet is prepared first."""

    def act(step: Step) -> None:
        if step.workflow.status is WorkflowStatus.PREPARING:
            # It was READY on a lost host, and the host that it was just given to prepares it anew.
            step.workflow.starts_when_ready = True
        else:
            operations.start(step)

    return await _take(where, workflow_id, actor, act, begins="start", takes_resources=True)


async def pause(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Let a run rest as soon as its host confirms that nothing runs."""
    return await _take(where, workflow_id, actor, operations.pause)


async def resume(
    where: Bus | Transaction, workflow_id: str, how: operations.ResumeFrom, *, actor: str, grants: bool = False
) -> Workflow:
    """Run again: after a checkpoint, from base, or in the same session; one who `grants` lets it cost as much again."""

    def act(step: Step) -> None:
        operations.resume(step, how, grants=grants)

    return await _take(where, workflow_id, actor, act, begins="resume", takes_resources=True)


async def cancel(
    where: Bus | Transaction, workflow_id: str, *, actor: str, reason: str = "somebody cancelled it"
) -> Workflow:
    """Give a run up; asking twice changes nothing."""

    def act(step: Step) -> None:
        operations.cancel(step, reason)

    return await _take(where, workflow_id, actor, act)


async def modify(
    where: Bus | Transaction, workflow_id: str, modification: modifying.Modification, *, actor: str
) -> Workflow:
    """Change what has not started."""

    def act(step: Step) -> None:
        modifying.modify(step, modification)

    return await _take(where, workflow_id, actor, act, takes_resources=True)


async def release(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Have the checkouts of an ended run removed."""
    return await _take(where, workflow_id, actor, operations.release)


async def delete(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Let a run that rests for good disappear, with its checkouts."""
    return await _take(where, workflow_id, actor, operations.delete)


async def show(bus: Bus, workflow_id: str) -> Workflow:
    """Return a run as it stands."""
    async with bus.transaction() as transaction:
        return (await load_workflow(transaction, workflow_id))[1]


async def continue_due(bus: Bus) -> list[str]:
    """Go on with runs that were parked until now, in the session that each has; returns their ids."""
    query = RecordQuery(kind=WORKFLOWS.name, state=WorkflowStatus.AWAITING, due_by=utc_now())
    async with bus.transaction() as transaction:
        due = [record.id for record in await transaction.find(query)]

    async def go_on(workflow_id: str) -> None:
        await change(bus, partial(_continue_parked, workflow_id))

    trouble = "could not go on with a parked run, trying again"
    return await _done_with(bus, due, go_on, trouble, others_wait=len(due) == query.limit)


async def _continue_parked(workflow_id: str, transaction: Transaction) -> None:
    _, workflow = await load_workflow(transaction, workflow_id)
    if workflow.status is not WorkflowStatus.AWAITING or workflow.parked_until is None:
        return
    try:
        await resume(transaction, workflow_id, operations.Continue(), actor=ENGINE)
    except IllegalTransition:
        # Its session is lost with its host.
        await resume(transaction, workflow_id, operations.Auto(), actor=ENGINE)


async def release_due(bus: Bus) -> list[str]:
    """Release the checkouts of runs that ended long enough ago; returns their ids."""
    due: list[str] = []
    others_wait = False
    async with bus.transaction() as transaction:
        for state in sorted({*WORKFLOW.final, DELETED}):
            query = RecordQuery(kind=WORKFLOWS.name, state=state, due_by=utc_now())
            found = [record.id for record in await transaction.find(query)]
            due += found
            others_wait = others_wait or len(found) == query.limit

    async def release_left(workflow_id: str) -> None:
        await _take(bus, workflow_id, ENGINE, operations.release_left)

    return await _done_with(bus, due, release_left, "could not release the checkouts of a run", others_wait=others_wait)


async def _done_with(
    bus: Bus, due: list[str], act: Callable[[str], Awaitable[None]], trouble: str, *, others_wait: bool
) -> list[str]:
    """Act on each run that is due; returns those with which it worked, the rest makes way where others wait."""
    done: list[str] = []
    for workflow_id in due:
        try:
            await act(workflow_id)
        except Exception as error:  # noqa: BLE001 - one run must not keep the others from their turn
            _log.warning(trouble, workflow=workflow_id, error=str(error))
        else:
            done.append(workflow_id)
    for workflow_id in set(due).difference(done) if others_wait else ():
        await change(bus, partial(_to_the_end_of_the_line, workflow_id))
    return done


async def _to_the_end_of_the_line(workflow_id: str, transaction: Transaction) -> None:
    record = await transaction.get(WORKFLOWS.name, workflow_id)
    if record and record.due_at:
        await transaction.put(replace(record, due_at=max(record.due_at, utc_now())))


async def _take(
    where: Bus | Transaction,
    workflow_id: str,
    actor: str,
    operation: Callable[[Step], None],
    *,
    begins: str = "",
    takes_resources: bool = False,
) -> Workflow:
    """Take one step of a run; the host that it `begins` something on, and the resources it needs, must be there."""

    async def act(transaction: Transaction) -> Workflow:
        record, workflow = await load_workflow(transaction, workflow_id)
        step = Step(workflow, at=utc_now())
        if begins:
            workflow.allow(begins)
            await _find_host(transaction, step)
        operation(step)
        if step.ignored:
            return workflow
        await settle_with_lost_host(transaction, step)
        if takes_resources and workflow.is_using:
            await _check_resources(transaction, workflow)
        await save_step(transaction, step, record, actor)
        return workflow

    return await change(where, act)


async def _find_host(transaction: Transaction, step: Step) -> None:
    workflow, placement = step.workflow, step.workflow.placement
    host = await host_for(transaction, workflow)
    if host is None:
        raise Transient(_why_no_host(workflow))
    if placement is None or host.id != placement.host:
        place(step, Placement(host=host.id, epoch=placement.epoch + 1 if placement else 1))


def _why_no_host(workflow: Workflow) -> str:
    if workflow.placement is None:
        return "no soldier host is up to run it: start one with `kingdom host run`, or everything with `kingdom up`"
    lost = workflow.placement.host
    return (
        f"workflow {workflow.id} belongs to host {lost}, which is lost, and no other can go on with it: start it again"
        f" with `kingdom host run --name {lost}`; another host can go on with a run only if all repositories of the run"
        " have a checkpoint remote"
    )


async def _check_resources(transaction: Transaction, workflow: Workflow) -> None:
    """Refuse a run whose repositories or MCP servers are unknown, deleted, or being deleted."""
    things: list[tuple[Any, str, str]] = [(Git, "git", each) for each in workflow.git_ids()]
    things += [(McpServer, "mcp server", each) for each in workflow.mcp_server_ids()]
    for kind, name, thing_id in things:
        _, thing = await load(transaction, kind, thing_id)
        thing.refuse_if_going(name, workflow.id)
