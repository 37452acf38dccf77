"""Move runs when their host is lost or restarts."""

import structlog

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.errors import NotFound, Unreadable
from kingdom.workflow.hosts import find_host, known_hosts, set_drained
from kingdom.workflow.model.messages.events import HostRunsLeft, WorkflowDisplaced
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.host import Host, HostStatus, choose_host
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.records import ENGINE, WORKFLOWS, each_record, load_resource, publish_events

_WORKING_STATUSES = (WorkflowStatus.PREPARING, WorkflowStatus.RUNNING, WorkflowStatus.RESUMING)
_RUNS_PER_TRANSACTION = 200
_log = structlog.get_logger("kingdom.workflow")


async def displace_runs(transaction: Transaction, host_id: str, epoch: int, reason: str, after: str = "") -> int:
    """Publish a WorkflowDisplaced for each run that needs its host, and return the number of these runs.

    A host with many runs needs several transactions: HostRunsLeft triggers the next one, which continues after the run
    id `after`. A host that registered again in the meantime is skipped, since its registration displaces its runs.
    """
    _, host = await find_host(transaction, host_id)
    if host and host.epoch != epoch:
        return 0
    query = RecordQuery(
        kind=WORKFLOWS.name, index="host", value=host_id, after=after or None, limit=_RUNS_PER_TRANSACTION
    )
    found = await transaction.find(query)
    waiting = [workflow for workflow in map(_read, found) if workflow and waits_for_host(workflow)]
    for workflow in waiting:
        await _displace(transaction, workflow, reason)
    if len(found) == _RUNS_PER_TRANSACTION:
        rest = HostRunsLeft(host=host_id, epoch=epoch, reason=reason, after=found[-1].id)
        await publish_events(transaction, [rest], aggregate="Host", key=host_id, actor=ENGINE)
    return len(waiting)


async def displace_stranded_runs(transaction: Transaction, slots_taken: int = 0) -> None:
    """Displace runs that can leave their lost host, as many as there are free slots on other hosts.

    Without this limit, the first host that returns would get all runs. `slots_taken` is the number of slots that other
    displaced runs already use.
    """
    hosts = await known_hosts(transaction)
    slots = sum(max(host.slots - host.busy, 0) for host in hosts if host.takes_runs)
    free = min(slots - slots_taken, _RUNS_PER_TRANSACTION)
    with_remote: dict[str, bool] = {}
    for host in hosts:
        if host.status is HostStatus.LOST:
            for state in _WORKING_STATUSES:
                query = RecordQuery(kind=WORKFLOWS.name, state=state, index="host", value=host.id)
                async for record in each_record(transaction, query):
                    if free <= 0:
                        return
                    workflow = _read(record)
                    if workflow and await _can_move(transaction, workflow, with_remote):
                        await _displace(transaction, workflow, f"{host.id} is lost")
                        free -= 1


async def undrain_host(transaction: Transaction, host_id: str, *, actor: str) -> Host:
    """Let a drained host take runs again, beginning with those that wait for a lost host."""
    host = await set_drained(transaction, host_id, drained=False, actor=actor)
    await displace_stranded_runs(transaction)
    return host


def waits_for_host(workflow: Workflow) -> bool:
    """Return whether a run needs its host: the host works for the run or has a command for it."""
    return not workflow.is_idle or any(tree.releasing for tree in workflow.work_trees if tree.may_exist)


async def finish_stop_on_lost_host(transaction: Transaction, step: Step) -> None:
    """Complete the requested stop of a run whose host is lost, because a lost host cannot confirm the stop."""
    placement = step.workflow.placement
    if step.workflow.stop_request and placement:
        _, host = await find_host(transaction, placement.host)
        if host is None or host.status is HostStatus.LOST:
            place(step, Placement(host=placement.host, epoch=placement.epoch + 1))


async def choose_host_for(transaction: Transaction, workflow: Workflow) -> Host | None:
    """Return the host for a run: its own host if that is up, otherwise another host that can get its checkpoints.

    A host with the session that the run continues is preferred if it takes runs. A lost one is never waited for.
    """
    placement = workflow.placement
    if placement:
        _, own = await find_host(transaction, placement.host)
        if own and own.status is HostStatus.UP:
            return own
        if not await _can_move(transaction, workflow, {}):
            return None
    if workflow.earlier_session:
        _, earlier = await find_host(transaction, workflow.earlier_session.host)
        if earlier and earlier.takes_runs:
            return earlier
    return choose_host(await known_hosts(transaction), workflow.id)


async def _can_move(transaction: Transaction, workflow: Workflow, with_remote: dict[str, bool]) -> bool:
    """Return whether another host can get the checkpoints of a run.

    `with_remote` is a cache that maps the id of a registered repository to whether it has a checkpoint remote.
    """
    if workflow.started_at is None:
        return True
    for git_id in workflow.git_ids():
        if git_id not in with_remote:
            try:
                _, git = await load_resource(transaction, Git, git_id)
            except NotFound:
                with_remote[git_id] = False
            else:
                with_remote[git_id] = bool(git.checkpoint_remote)
    return all(with_remote[git_id] for git_id in workflow.git_ids())


def _read(record: Record) -> Workflow | None:
    """Return a run, or None if it is unreadable, because an unreadable run must not block the other runs."""
    try:
        return Workflow.read(record.doc)
    except Unreadable as error:
        _log.warning("a run cannot be read and is not moved", workflow=record.id, error=str(error))
        return None


async def _displace(transaction: Transaction, workflow: Workflow, reason: str) -> None:
    if workflow.placement:
        host, epoch = workflow.placement.host, workflow.placement.epoch
        event = WorkflowDisplaced(workflow_id=workflow.id, host=host, epoch=epoch, reason=reason)
        await publish_events(transaction, [event], aggregate="Workflow", key=workflow.id, actor=ENGINE)
