"""Follows a run until it stops, for --wait."""

import asyncio
import signal
from collections.abc import AsyncIterator

from rich.live import Live

from kingdom.actions.hosts import host_of
from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor
from kingdom.bus.operations import Operations, read_log_to_end
from kingdom.bus.port import Bus
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall
from kingdom.cli.framework.long_running import BY_SIGNAL
from kingdom.cli.workflow.view import log_line, tree_view
from kingdom.clock import utc_now
from kingdom.text import format_age
from kingdom.workflow.lifecycle import show
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.streams import ENGINE_STREAMS

# The exit code of each status in which a run does not continue by itself.
_CODES = {
    WorkflowStatus.READY: 0,
    WorkflowStatus.COMPLETED: 0,
    WorkflowStatus.FAILED: exit_code.FAILED,
    WorkflowStatus.CANCELLED: exit_code.FAILED,
    WorkflowStatus.PAUSED: exit_code.WAITING,
    WorkflowStatus.AWAITING: exit_code.WAITING,
}
_POLL_SECONDS = 0.2
# When events wait longer than this, the process that handles them is probably not running.
_UNHANDLED_SECONDS = 5.0
# Once in this many polls, `_poll` checks whether a process is missing.
_POLLS_PER_CHECK = 10


async def follow(
    call: CommandCall, bus: Bus, workflow_id: str, since: LogCursor, wanted: WorkflowStatus
) -> tuple[Workflow, int]:
    """Show the progress of a run until it stops. Return the run and the exit code.

    If the run ends in the `wanted` status, the exit code is 0. Ctrl-C ends the view, but not the run.
    """
    try:
        workflow = await _show_progress(call, bus, workflow_id, since)
    except asyncio.CancelledError:
        if task := asyncio.current_task():
            # Ctrl-C ends only this view, so the cancellation of the task is undone.
            task.uncancel()
        call.output.note(f"{workflow_id} keeps running. To see it: kingdom workflow show {workflow_id}")
        return await show(bus, workflow_id), BY_SIGNAL + signal.SIGINT
    return workflow, 0 if workflow.status is wanted else _CODES[workflow.status]


def _has_stopped(workflow: Workflow) -> bool:
    """Return whether a run does not continue by itself."""
    about_to_start = workflow.status is WorkflowStatus.READY and workflow.starts_when_ready
    return workflow.status in _CODES and not workflow.stop_request and not about_to_start


async def _show_progress(call: CommandCall, bus: Bus, workflow_id: str, since: LogCursor) -> Workflow:
    if call.output.json or not call.output.console.is_terminal:
        async for workflow in _poll(call, bus, workflow_id):
            entries, since = await read_log_to_end(operations_of(bus), workflow_id, since)
            call.output.say(*(log_line(workflow, entry) for entry in entries))
        return workflow
    with Live(console=call.output.console, auto_refresh=False) as live:
        async for workflow in _poll(call, bus, workflow_id):
            live.update(tree_view(workflow, await host_of(bus, workflow), utc_now()), refresh=True)
    return workflow


async def _poll(call: CommandCall, bus: Bus, workflow_id: str) -> AsyncIterator[Workflow]:
    """Yield a run again and again until it stops. Print one note if a process seems to be missing."""
    operations = operations_of(bus)
    polls, warned = 0, False
    while True:
        workflow = await show(bus, workflow_id)
        yield workflow
        if _has_stopped(workflow):
            return
        polls += 1
        if (
            not warned
            and polls % _POLLS_PER_CHECK == 0
            and (problem := await _find_missing_process(call, operations, workflow))
        ):
            call.output.note(problem)
            warned = True
        await asyncio.sleep(_POLL_SECONDS)


async def _find_missing_process(call: CommandCall, operations: Operations, workflow: Workflow) -> str:
    """Return a note about the process that should handle the events of a run, if no worker takes them."""
    host = workflow.placement.host if workflow.placement else ""
    if call.settings.file:
        # In a realm these roles follow kingdom.yaml, and an engine and a host would not.
        engine_command, host_command = "kingdom up` or `kingdom role general", "kingdom up` or `kingdom role soldiers"
    else:
        engine_command, host_command = "kingdom role engine", f"kingdom role host --name {host}"
    commands = {**dict.fromkeys(ENGINE_STREAMS, engine_command), f"soldier.{host}": host_command}
    for row in await operations.stats():
        if row.stream in commands and not row.processing and row.oldest_pending_seconds > _UNHANDLED_SECONDS:
            paused = f"it is paused: {row.paused}" if row.paused else f"is `{commands[row.stream]}` running?"
            return f"No worker has taken events of {row.stream} for {format_age(row.oldest_pending_seconds)}: {paused}"
    return ""
