"""Operations on stored runs, each in one transaction. The error of a refused operation lists the allowed operations.

If `where` is a bus, an operation opens its own transaction. If `where` is a transaction, the operation is part of it.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.clock import utc_now
from kingdom.errors import IllegalTransition, NotFound, Transient, Unreadable
from kingdom.failure_log import log_failure
from kingdom.ids import new_id
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.continuation import Continuation, find_session
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import WORKFLOW, WorkflowStatus
from kingdom.workflow.model.steps import modify as modifying
from kingdom.workflow.model.steps import operations
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.records import (
    DELETED,
    ENGINE,
    WORKFLOWS,
    load_resource,
    load_workflow,
    run_transaction,
    save_step,
)
from kingdom.workflow.relocation import choose_host_for, finish_stop_on_lost_host

_log = structlog.get_logger("kingdom.workflow")


async def create(where: Bus | Transaction, template_id: str, *, actor: str, name: str = "") -> Workflow:
    """Create a run from a template. Later changes of the template do not affect the run."""

    async def act(transaction: Transaction) -> Workflow:
        _, template = await load_resource(transaction, WorkflowTemplate, template_id)
        step = operations.create(template, new_id("wf"), utc_now(), name=name)
        await _check_resources(transaction, step.workflow)
        await save_step(transaction, step, None, actor)
        return step.workflow

    return await run_transaction(where, act)


async def run(
    transaction: Transaction,
    template: WorkflowTemplate,
    workflow_id: str,
    *,
    actor: str,
    name: str = "",
    requester: str = "",
    general: str = "",
    continuation: Continuation | None = None,
) -> Workflow:
    """Create a run from a template object and start it, all in one transaction."""
    step = operations.create(template, workflow_id, utc_now(), name=name, requester=requester, general=general)
    if continuation:
        await _take_over_session(transaction, step, continuation, actor)
    await _ensure_host(transaction, step)
    operations.start(step)
    await _check_resources(transaction, step.workflow)
    await save_step(transaction, step, None, actor)
    return step.workflow


async def prepare(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Prepare the checkouts of a run and leave it READY."""
    return await _take_step(
        where, workflow_id, actor, operations.prepare, needs_host_for="prepare", needs_resources=True
    )


async def start(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Start a run, preparing its checkouts first if needed."""

    def act(step: Step) -> None:
        if step.workflow.status is WorkflowStatus.PREPARING:
            # The run was READY on a lost host, so its new host is preparing it again.
            step.workflow.starts_when_ready = True
        else:
            operations.start(step)

    return await _take_step(where, workflow_id, actor, act, needs_host_for="start", needs_resources=True)


async def pause(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Stop the agent of a run. The run is paused when its host confirms the stop."""
    return await _take_step(where, workflow_id, actor, operations.pause)


async def resume(
    where: Bus | Transaction, workflow_id: str, how: operations.ResumeFrom, *, actor: str, grants: bool = False
) -> Workflow:
    """Resume a run from a checkpoint, from its base commit, or in its session.

    `grants` adds the initial budget once more.
    """

    def act(step: Step) -> None:
        operations.resume(step, how, grants=grants)

    return await _take_step(where, workflow_id, actor, act, needs_host_for="resume", needs_resources=True)


async def cancel(
    where: Bus | Transaction, workflow_id: str, *, actor: str, reason: str = "a person cancelled it"
) -> Workflow:
    """Cancel a run. A second request changes nothing."""

    def act(step: Step) -> None:
        operations.cancel(step, reason)

    return await _take_step(where, workflow_id, actor, act)


async def modify(
    where: Bus | Transaction, workflow_id: str, modification: modifying.Modification, *, actor: str
) -> Workflow:
    """Change the parts of a run that have not started."""

    def act(step: Step) -> None:
        modifying.modify(step, modification)

    return await _take_step(where, workflow_id, actor, act, needs_resources=True)


async def release(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Release the checkouts of an ended run."""
    return await _take_step(where, workflow_id, actor, operations.release)


async def delete(where: Bus | Transaction, workflow_id: str, *, actor: str) -> Workflow:
    """Delete a finished run and release its checkouts."""
    return await _take_step(where, workflow_id, actor, operations.delete)


async def keep_files(transaction: Transaction, workflow_id: str, until: datetime, *, actor: str) -> None:
    """Keep the files of a run until a time, even if it ends earlier. A run that cannot be read is skipped."""
    try:
        await _take_step(transaction, workflow_id, actor, partial(operations.keep_files, until=until))
    except (NotFound, Unreadable) as error:
        _log.warning("the files of a run may be removed early", workflow=workflow_id, error=str(error))


async def show(bus: Bus, workflow_id: str) -> Workflow:
    """Return a run."""
    async with bus.transaction() as transaction:
        return (await load_workflow(transaction, workflow_id))[1]


async def resume_parked_runs(bus: Bus) -> list[str]:
    """Resume the parked runs whose vendor accepts requests again, and return their ids."""
    query = RecordQuery(kind=WORKFLOWS.name, state=WorkflowStatus.AWAITING, due_by=utc_now())
    async with bus.transaction() as transaction:
        due = [record.id for record in await transaction.find(query)]

    async def resume_run(workflow_id: str) -> None:
        await run_transaction(bus, partial(_continue_parked, workflow_id))

    failure = "could not resume a parked run, trying again"
    return await _act_on_each(bus, due, resume_run, failure, has_more=len(due) == query.limit)


async def _continue_parked(workflow_id: str, transaction: Transaction) -> None:
    _, workflow = await load_workflow(transaction, workflow_id)
    if workflow.status is not WorkflowStatus.AWAITING or workflow.parked_until is None:
        return
    try:
        await resume(transaction, workflow_id, operations.Continue(), actor=ENGINE)
    except IllegalTransition:
        # The run cannot continue in its session, which was lost with its host.
        await resume(transaction, workflow_id, operations.Auto(), actor=ENGINE)


async def release_old_checkouts(bus: Bus) -> list[str]:
    """Release the checkouts of runs that ended long enough ago, and return the ids of the runs."""
    due: list[str] = []
    has_more = False
    async with bus.transaction() as transaction:
        for state in sorted({*WORKFLOW.final, DELETED}):
            query = RecordQuery(kind=WORKFLOWS.name, state=state, due_by=utc_now())
            found = [record.id for record in await transaction.find(query)]
            due += found
            has_more = has_more or len(found) == query.limit

    async def release_run(workflow_id: str) -> None:
        await _take_step(bus, workflow_id, ENGINE, operations.release_remaining_trees)

    return await _act_on_each(bus, due, release_run, "could not release the checkouts of a run", has_more=has_more)


async def _act_on_each(
    bus: Bus, due: list[str], act: Callable[[str], Awaitable[None]], failure: str, *, has_more: bool
) -> list[str]:
    """Act on each due run and return the ids of the successful runs.

    If the query found only a part of the due runs (`has_more`), failed runs are postponed, so they do not block others.
    """
    done: list[str] = []
    for workflow_id in due:
        try:
            await act(workflow_id)
        except Exception as error:  # noqa: BLE001 - one run must not block the others
            log_failure(_log, failure, error, workflow=workflow_id)
        else:
            done.append(workflow_id)
    for workflow_id in set(due).difference(done) if has_more else ():
        await run_transaction(bus, partial(_postpone, workflow_id))
    return done


async def _postpone(workflow_id: str, transaction: Transaction) -> None:
    record = await transaction.get(WORKFLOWS.name, workflow_id)
    if record and record.due_at:
        await transaction.put(record.replace(due_at=max(record.due_at, utc_now())))


async def _take_step(
    where: Bus | Transaction,
    workflow_id: str,
    actor: str,
    operation: Callable[[Step], None],
    *,
    needs_host_for: str = "",
    needs_resources: bool = False,
) -> Workflow:
    """Apply an operation to a run. `needs_host_for` is the name of the operation if it requires a host."""

    async def act(transaction: Transaction) -> Workflow:
        record, workflow = await load_workflow(transaction, workflow_id)
        step = Step(workflow, at=utc_now())
        if needs_host_for:
            workflow.require_allowed(needs_host_for)
            await _ensure_host(transaction, step)
        operation(step)
        if step.ignored:
            return workflow
        await finish_stop_on_lost_host(transaction, step)
        if needs_resources and workflow.uses_resources:
            await _check_resources(transaction, workflow)
        await save_step(transaction, step, record, actor)
        return workflow

    return await run_transaction(where, act)


async def _take_over_session(transaction: Transaction, step: Step, continuation: Continuation, actor: str) -> None:
    """Let a new run go on in the session of an earlier run, if that run still has one."""
    operations.keep_files(step, continuation.kept_until)
    record = await transaction.get(WORKFLOWS.name, continuation.workflow_id)
    earlier = Step(Workflow.read(record.doc), at=step.at) if record else None
    session = find_session(earlier.workflow) if earlier else None
    if earlier and session:
        operations.continue_session(step, session, continuation.query)
        operations.hand_over_session(earlier, step.workflow.id)
        await save_step(transaction, earlier, record, actor)


async def _ensure_host(transaction: Transaction, step: Step) -> None:
    workflow, placement = step.workflow, step.workflow.placement
    host = await choose_host_for(transaction, workflow)
    if host is None:
        raise Transient(_no_host_message(workflow))
    if placement is None or host.id != placement.host:
        place(step, Placement(host=host.id, epoch=placement.epoch + 1 if placement else 1))


def _no_host_message(workflow: Workflow) -> str:
    if workflow.placement is None:
        return (
            "no soldier host is up: start one with `kingdom role host`, or everything with `kingdom up`; if one is"
            " drained, `kingdom host undrain NAME` lets it take runs again"
        )
    lost = workflow.placement.host
    return (
        f"workflow {workflow.id} belongs to host {lost}, which is lost, and no other host can take it now: start the"
        f" host again with `kingdom role host --name {lost}`, or start another host if all repositories of the run have"
        " a checkpoint remote"
    )


async def _check_resources(transaction: Transaction, workflow: Workflow) -> None:
    """Refuse a run whose repositories or MCP servers are unknown, deleted, or being deleted."""
    resources: list[tuple[Any, str, str]] = [(Git, "git", each) for each in workflow.git_ids()]
    resources += [(McpServer, "mcp server", each) for each in workflow.mcp_server_ids()]
    for kind, name, resource_id in resources:
        _, resource = await load_resource(transaction, kind, resource_id)
        resource.refuse_if_unavailable(name, workflow.id)
