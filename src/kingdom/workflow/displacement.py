"""Where runs go when their host is lost or begins anew."""

import structlog

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.errors import NotFound, Unreadable
from kingdom.workflow.hosts import find_host, known_hosts
from kingdom.workflow.model.events import HostRunsLeft, WorkflowDisplaced
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.host import Host, HostStatus, choose
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.placement import place
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.workflow import Placement, Workflow
from kingdom.workflow.records import ENGINE, WORKFLOWS, announce, each, load

_AT_WORK = (WorkflowStatus.PREPARING, WorkflowStatus.RUNNING, WorkflowStatus.RESUMING)
_RUNS_AT_ONCE = 200
_log = structlog.get_logger("kingdom.workflow")


async def displace_runs(transaction: Transaction, host_id: str, epoch: int, reason: str, after: str = "") -> int:
    """Say of the runs of a host that what ran there is over; each then finds its own way on. Returns how many.

    Of a host with many runs the rest follows in transactions of its own; a host that has begun anew since this was
    asked for is left alone, since that displaces its runs itself.
    """
    _, host = await find_host(transaction, host_id)
    if host and host.epoch != epoch:
        return 0
    query = RecordQuery(kind=WORKFLOWS.name, owner=host_id, after=after or None, limit=_RUNS_AT_ONCE)
    found = await transaction.find(query)
    waiting = [workflow for workflow in map(_read, found) if workflow and waits_for_host(workflow)]
    for workflow in waiting:
        await _displace(transaction, workflow, reason)
    if len(found) == _RUNS_AT_ONCE:
        left = HostRunsLeft(host=host_id, epoch=epoch, reason=reason, after=found[-1].id)
        await announce(transaction, [left], aggregate="Host", key=host_id, actor=ENGINE)
    return len(waiting)


async def displace_stranded_runs(transaction: Transaction, taken: int = 0) -> None:
    """Say it again of runs of lost hosts that could go on elsewhere by now, of as many as there are free slots.

    So the first host that is back does not get everything; `taken` slots are about to be used by runs of its own.
    """
    hosts = await known_hosts(transaction)
    slots = sum(max(host.slots - host.busy, 0) for host in hosts if host.status is HostStatus.UP)
    free = min(slots - taken, _RUNS_AT_ONCE)
    with_remote: dict[str, bool] = {}
    for host in hosts:
        if host.status is HostStatus.LOST:
            for state in _AT_WORK:
                query = RecordQuery(kind=WORKFLOWS.name, state=state, owner=host.id)
                async for record in each(transaction, query):
                    if free <= 0:
                        return
                    workflow = _read(record)
                    if workflow and await _can_move(transaction, workflow, with_remote):
                        await _displace(transaction, workflow, f"{host.id} is lost")
                        free -= 1


def waits_for_host(workflow: Workflow) -> bool:
    """Tell whether a host has something to do for a run, or was told to do it."""
    return not workflow.is_quiet or any(tree.releasing for tree in workflow.work_trees if tree.is_there)


async def settle_with_lost_host(transaction: Transaction, step: Step) -> None:
    """Let what is wanted of a run become true if its host is lost: nothing of it can run there any more."""
    placement = step.workflow.placement
    if step.workflow.wanted and placement:
        _, host = await find_host(transaction, placement.host)
        if host is None or host.status is HostStatus.LOST:
            place(step, Placement(host=placement.host, epoch=placement.epoch + 1))


async def host_for(transaction: Transaction, workflow: Workflow) -> Host | None:
    """Return the host that a run can go on with: its own while that is up, else one that can have its checkpoints."""
    placement = workflow.placement
    if placement:
        _, own = await find_host(transaction, placement.host)
        if own and own.status is HostStatus.UP:
            return own
        if not await _can_move(transaction, workflow, {}):
            return None
    return choose(await known_hosts(transaction), workflow.id)


async def _can_move(transaction: Transaction, workflow: Workflow, with_remote: dict[str, bool]) -> bool:
    """Tell whether another host can have the checkpoints of a run; `with_remote` remembers Gits that were read."""
    if workflow.started_at is None:
        return True
    for git_id in workflow.git_ids():
        if git_id not in with_remote:
            try:
                _, git = await load(transaction, Git, git_id)
            except NotFound:
                with_remote[git_id] = False
            else:
                with_remote[git_id] = bool(git.checkpoint_remote)
    return all(with_remote[git_id] for git_id in workflow.git_ids())


def _read(record: Record) -> Workflow | None:
    """Return a run; one that cannot be read must not keep the others from going on."""
    try:
        return Workflow.read(record.doc)
    except Unreadable as error:
        _log.warning("a run cannot be read and is left where it is", workflow=record.id, error=str(error))
        return None


async def _displace(transaction: Transaction, workflow: Workflow, reason: str) -> None:
    if workflow.placement:
        host, epoch = workflow.placement.host, workflow.placement.epoch
        said = WorkflowDisplaced(workflow_id=workflow.id, host=host, epoch=epoch, reason=reason)
        await announce(transaction, [said], aggregate="Workflow", key=workflow.id, actor=ENGINE)
