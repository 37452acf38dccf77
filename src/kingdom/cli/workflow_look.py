"""`kingdom workflow list`, `show`, `checkpoints` and `logs`: where runs stand, and how they came there."""

import asyncio
from typing import Annotated

import msgspec
import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.command import Call, Newest, command
from kingdom.cli.host_record import host_of
from kingdom.cli.output import shape
from kingdom.cli.shape import array, camel, lines, one
from kingdom.cli.workflow_follow import new_entries
from kingdom.cli.workflow_id import RunId, age_key, find_checkpoint, find_work, find_workflow
from kingdom.cli.workflow_view import checkpoints_view, list_view, log_line, next_commands, tree_view
from kingdom.clock import utc_now
from kingdom.workflow import lifecycle
from kingdom.workflow.model.checkpoint import Checkpoint
from kingdom.workflow.model.host import Host
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.work import Work
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import DELETED, WORKFLOWS, each

app = typer.Typer()
_POLL_SECONDS = 0.5


class ShownWorkflow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run, the host it belongs to if that is known, and what can be asked of it."""

    workflow: Workflow
    host: Host | None
    allowed: list[str]
    valid_checkpoints: list[str]


class ShownCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """A commit per WorkTree after one Work, and whether one can still return there."""

    valid: bool


@command(app, "list", answer=array(Workflow))
async def list_(
    call: Call,
    *,
    status: Annotated[list[WorkflowStatus] | None, typer.Option(help="Only these; repeatable.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that were deleted.")] = False,
    limit: Newest = 20,
) -> None:
    """Show runs, the newest first.

    Example: kingdom workflow list --status RUNNING --status AWAITING

    JSON: an array of workflows, as `create` answers them.
    """
    wanted = set(status or WorkflowStatus)
    async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
        found = [
            record
            for state in (*wanted, *((DELETED,) if every else ()))
            async for record in each(transaction, RecordQuery(kind=WORKFLOWS.name, state=state))
            if state != DELETED or record.doc.get("status") in wanted
        ]
        is_empty = not found and not await transaction.find(RecordQuery(kind=WORKFLOWS.name, limit=1))
    shown = call.readable(sorted(found, key=age_key, reverse=True)[:limit], Workflow)
    if call.output.json:
        call.output.document(shown)
    elif shown:
        call.output.console.print(list_view(shown))
        if len(found) > limit:
            call.output.note(f"{len(found) - limit} older one(s) are not shown: say --limit {len(found)}")
    elif not is_empty:
        call.output.say("There is no such run; --all shows deleted ones too.")
    else:
        call.output.say("There is no run yet. Make one: kingdom workflow create TEMPLATE")


@command(app, "show", answer=one(ShownWorkflow))
async def show(call: Call, workflow_id: RunId) -> None:
    """Show a run: where it stands and why, its works and tasks, checkouts, checkpoints, and what can be asked of it.

    Example: kingdom workflow show last

    JSON: {workflow, host, allowed: [command], validCheckpoints: [id]}; the workflow as `create` answers it.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        host = await host_of(bus, workflow)
    if call.output.json:
        valid = [point.id for point in workflow.valid_checkpoints()]
        allowed = next_commands(workflow)
        call.output.document(ShownWorkflow(workflow=workflow, host=host, allowed=allowed, valid_checkpoints=valid))
    else:
        call.output.console.print(tree_view(workflow, host, utc_now()))


@command(app, "checkpoints", answer=array(ShownCheckpoint))
async def checkpoints(
    call: Call,
    workflow_id: RunId,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="Only this one: its id, or such as w1-c1.")
    ] = None,
) -> None:
    """Show the points of a run that one could return to, and which are still valid.

    Example: kingdom workflow checkpoints last

    JSON: an array of {id, workId, commits: {workTree: commit}, definitions, createdAt, valid}.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
    valid = {point.id for point in workflow.valid_checkpoints()}
    points = [find_checkpoint(workflow, checkpoint)] if checkpoint else workflow.checkpoints
    if call.output.json:
        call.output.document(
            [ShownCheckpoint(**msgspec.structs.asdict(each), valid=each.id in valid) for each in points]
        )
    elif points:
        call.output.console.print(checkpoints_view(workflow, points))
    else:
        call.output.say(f"{workflow.id} has no checkpoint yet: each work that is completed leaves one.")


@command(app, "logs", answer=lines(camel(LogEntry)))
async def logs(
    call: Call,
    workflow_id: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")] = False,
    work: Annotated[str, typer.Option(help="Only this work: its id, its short id such as w2, or its name.")] = "",
) -> None:
    """Show what happened to a run, from the log of the store; `kingdom logs` shows what its agents said and did.

    Example: kingdom workflow logs last -f

    JSON: an object {at, type, actor, traceId, aggregateType, aggregateId, data} per line.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        chosen = find_work(workflow, work) if work else None
        await _show_history(call, bus, workflow, chosen, follow=follow)


async def _show_history(call: Call, bus: Bus, workflow: Workflow, work: Work | None, *, follow: bool) -> None:
    operations, cursor = operations_of(bus), LogCursor()
    while True:
        ended = not follow or (await lifecycle.show(bus, workflow.id)).ended_at is not None
        entries, cursor = await new_entries(operations, workflow.id, cursor)
        for entry in entries:
            if work is None or _is_about(entry, work):
                if call.output.json:
                    call.output.document(shape(entry))
                call.output.say(log_line(workflow, entry))
        if ended:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _is_about(entry: LogEntry, work: Work) -> bool:
    """Tell whether an entry names a Work or one of its parts."""
    return any(
        isinstance(value, str) and (value == work.id or value.startswith(f"{work.id}-"))
        for value in entry.data.values()
    )
