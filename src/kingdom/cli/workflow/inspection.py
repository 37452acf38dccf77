"""`kingdom workflow list`, `show`, `checkpoints` and `logs`: inspect runs."""

import asyncio
from typing import Annotated

import msgspec
import typer

from kingdom.actions.hosts import host_of
from kingdom.actions.listings import newest_runs_of_days
from kingdom.actions.runs import to_details
from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.operations import read_log_to_end
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, lines, one
from kingdom.cli.framework.workflow_ids import RunId, age_key, find_checkpoint, find_work, find_workflow
from kingdom.cli.workflow.view import checkpoints_view, list_view, log_line, tree_view
from kingdom.clock import utc_now
from kingdom.views.bus import LogEntryView
from kingdom.views.camel import to_json_object
from kingdom.views.workflows import CheckpointDetails, WorkflowDetails
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import DELETED, WORKFLOWS

app = typer.Typer()
_POLL_SECONDS = 0.5


@command(app, "list", result=array(Workflow))
async def list_(
    call: CommandCall,
    *,
    status: Annotated[list[WorkflowStatus] | None, typer.Option(help="Only runs with this status; repeatable.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include deleted runs.")] = False,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first.

    Example: kingdom workflow list --status RUNNING --status AWAITING

    JSON: an array of workflows, as `create` prints them.
    """
    wanted = set(status or WorkflowStatus)
    async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
        found = [
            record
            for state in (*wanted, *((DELETED,) if every else ()))
            for record in await newest_runs_of_days(transaction, state, limit + 1)
            if state != DELETED or record.doc.get("status") in wanted
        ]
        is_empty = not found and not await transaction.find(RecordQuery(kind=WORKFLOWS.name, limit=1))
    shown = call.readable(sorted(found, key=age_key, reverse=True)[:limit], Workflow)
    if call.output.json:
        call.output.document(shown)
    elif shown:
        call.output.console.print(list_view(shown))
        if len(found) > limit:
            call.output.note_older("runs", limit)
    elif not is_empty:
        call.output.say("There are no runs that match; --all includes deleted ones.")
    else:
        call.output.say("There are no runs yet. Create one: kingdom workflow create TEMPLATE")


@command(app, "show", result=one(WorkflowDetails))
async def show(call: CommandCall, workflow_id: RunId) -> None:
    """Show a run: its state and the reason, works, tasks, checkouts, checkpoints, and the allowed commands.

    Example: kingdom workflow show last

    JSON: {workflow, host, allowed: [command], validCheckpoints: [id]}; the workflow as `create` prints it.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        host = await host_of(bus, workflow)
    if call.output.json:
        call.output.document(to_details(workflow, host))
    else:
        call.output.console.print(tree_view(workflow, host, utc_now()))


@command(app, "checkpoints", result=array(CheckpointDetails))
async def checkpoints(
    call: CommandCall,
    workflow_id: RunId,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="Only this one: its id, or its short id such as w1-c1.")
    ] = None,
) -> None:
    """List the checkpoints of a run, and which of them are still valid.

    Example: kingdom workflow checkpoints last

    JSON: an array of {id, workId, commits: {workTree: commit}, definitions, createdAt, changedPaths: {workTree:
    [path]}, valid}.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
    valid = {point.id for point in workflow.valid_checkpoints()}
    points = [find_checkpoint(workflow, checkpoint)] if checkpoint else workflow.checkpoints
    if call.output.json:
        call.output.document(
            [CheckpointDetails(**msgspec.structs.asdict(each), valid=each.id in valid) for each in points]
        )
    elif points:
        call.output.console.print(checkpoints_view(workflow, points))
    else:
        call.output.say(f"{workflow.id} has no checkpoint yet: every completed work creates one.")


@command(app, "logs", result=lines(LogEntryView))
async def logs(
    call: CommandCall,
    workflow_id: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until the run ends.")] = False,
    work: Annotated[str, typer.Option(help="Only this work: its id, its short id such as w2, or its name.")] = "",
) -> None:
    """Show the log entries of a run; `kingdom logs` shows what its agents said and did.

    Example: kingdom workflow logs last -f

    JSON: an object {at, type, actor, traceId, aggregateType, aggregateId, data} per line.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        chosen = find_work(workflow, work) if work else None
        await _show_history(call, bus, workflow, chosen, follow=follow)


async def _show_history(call: CommandCall, bus: Bus, workflow: Workflow, work: Work | None, *, follow: bool) -> None:
    operations, cursor = operations_of(bus), LogCursor()
    while True:
        ended = not follow or (await lifecycle.show(bus, workflow.id)).ended_at is not None
        entries, cursor = await read_log_to_end(operations, workflow.id, cursor)
        for entry in entries:
            if work is None or _is_about(entry, work):
                if call.output.json:
                    call.output.document(to_json_object(entry))
                call.output.say(log_line(workflow, entry))
        if ended:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _is_about(entry: LogEntry, work: Work) -> bool:
    """Return whether a log entry mentions a Work or one of its parts."""
    return any(
        isinstance(value, str) and (value == work.id or value.startswith(f"{work.id}-"))
        for value in entry.data.values()
    )
