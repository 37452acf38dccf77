"""Following a run until it rests or ends, for --wait."""

import asyncio
import signal
from collections.abc import AsyncIterator

from rich.live import Live

from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.cli import exit_code
from kingdom.cli.command import Call
from kingdom.cli.host_record import host_of
from kingdom.cli.running import BY_SIGNAL
from kingdom.cli.workflow_view import log_line, tree_view
from kingdom.clock import utc_now
from kingdom.workflow.lifecycle import show
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.streams import ENGINE_STREAMS

_CODES = {
    WorkflowStatus.READY: 0,
    WorkflowStatus.COMPLETED: 0,
    WorkflowStatus.FAILED: exit_code.FAILED,
    WorkflowStatus.CANCELLED: exit_code.FAILED,
    WorkflowStatus.PAUSED: exit_code.WAITING,
    WorkflowStatus.AWAITING: exit_code.WAITING,
}
_POLL_SECONDS = 0.2
_PAGE = 500
# Events that wait this long for somebody to take them make one wonder whether anybody is there.
_LONELY_SECONDS = 5.0
_LOOKS_FOR_LONELINESS = 10


async def follow(
    call: Call, bus: Bus, workflow_id: str, since: LogCursor, wanted: WorkflowStatus
) -> tuple[Workflow, int]:
    """Show what a run does until it rests or ends; returns it with the exit code that tells how.

    What was `wanted` is no failure. Ctrl-C ends the looking and leaves the run alone.
    """
    try:
        workflow = await _until_rest(call, bus, workflow_id, since)
    except asyncio.CancelledError:
        if task := asyncio.current_task():
            # Only the looking was given up.
            task.uncancel()
        call.output.note(f"{workflow_id} goes on without you. Look again: kingdom workflow show {workflow_id}")
        return await show(bus, workflow_id), BY_SIGNAL + signal.SIGINT
    return workflow, 0 if workflow.status is wanted else _CODES[workflow.status]


async def new_entries(operations: Operations, workflow_id: str, since: LogCursor) -> tuple[list[LogEntry], LogCursor]:
    """Return what the log says of a run behind a cursor, and the cursor behind that."""
    entries: list[LogEntry] = []
    while page := await operations.read_log(since, _PAGE, workflow_id):
        entries += [logged.entry for logged in page]
        since = page[-1].cursor
    return entries, since


def _rests(workflow: Workflow) -> bool:
    """Tell whether a run does nothing before somebody asks for it."""
    about_to_start = workflow.status is WorkflowStatus.READY and workflow.starts_when_ready
    return workflow.status in _CODES and not workflow.wanted and not about_to_start


async def _until_rest(call: Call, bus: Bus, workflow_id: str, since: LogCursor) -> Workflow:
    if call.output.json or not call.output.console.is_terminal:
        async for workflow in _looks(call, bus, workflow_id):
            entries, since = await new_entries(operations_of(bus), workflow_id, since)
            call.output.say(*(log_line(workflow, entry) for entry in entries))
        return workflow
    with Live(console=call.output.console, auto_refresh=False) as live:
        async for workflow in _looks(call, bus, workflow_id):
            live.update(tree_view(workflow, await host_of(bus, workflow), utc_now()), refresh=True)
    return workflow


async def _looks(call: Call, bus: Bus, workflow_id: str) -> AsyncIterator[Workflow]:
    """Yield a run again and again, the last time when it rests; says once that nobody seems to be there."""
    operations = operations_of(bus)
    looks, warned = 0, False
    while True:
        workflow = await show(bus, workflow_id)
        yield workflow
        if _rests(workflow):
            return
        looks += 1
        if not warned and looks % _LOOKS_FOR_LONELINESS == 0 and (words := await _lonely(operations, workflow)):
            call.output.note(words)
            warned = True
        await asyncio.sleep(_POLL_SECONDS)


async def _lonely(operations: Operations, workflow: Workflow) -> str:
    """Return who is missing, if events that a run waits for are taken by nobody."""
    host = workflow.placement.host if workflow.placement else ""
    commands = {**dict.fromkeys(ENGINE_STREAMS, "kingdom engine"), f"soldier.{host}": f"kingdom host run --name {host}"}
    for row in await operations.stats():
        if row.stream in commands and not row.processing and row.oldest_pending_seconds > _LONELY_SECONDS:
            paused = f"it is paused: {row.paused}" if row.paused else f"is `{commands[row.stream]}` running?"
            return f"Nobody has taken events of {row.stream} for {row.oldest_pending_seconds:.0f} s: {paused}"
    return ""
