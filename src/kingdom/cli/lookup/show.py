"""`kingdom show`: find out what an id belongs to, and run the command that shows it."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus, Transaction
from kingdom.cli.court import petition
from kingdom.cli.framework.command import CommandCall, application_for_any_stream, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import ID_PREFIXES, find_task, find_work, find_workflow, resolve_id
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.errors import Ambiguous, NotFound
from kingdom.workflow.records import GITS, MCP_SERVERS, TEMPLATES

app = typer.Typer(add_completion=False)
# The noun of each kind of record, in the order of the search.
_NOUNS: Mapping[str, str] = {
    ASSIGNMENTS.name: "assignment",
    EVENTS.name: "event",
    PETITIONS.name: "petition",
    TEMPLATES.name: "template",
    GITS.name: "git",
    MCP_SERVERS.name: "mcp",
}
_GENERAL = "gen-"
_CHECKPOINT_ID = re.compile(r"(.+)-(w\d+-c\d+)")
_WORK_OR_TASK_ID = re.compile(r"(.+)-(w\d+(-t\d+)?)")


@command(app, "show", result=one(Any))
async def show(
    call: CommandCall,
    thing: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The id of a run, assignment, event, petition, checkpoint or template, or the name of a General,"
            " repository or MCP server. `last` is the newest run.",
        ),
    ],
) -> None:
    """Show the thing with an id, like the command for its kind: `kingdom workflow show` for a run, and so on.

    Example: kingdom show last

    Example: kingdom show task-20260207-001

    JSON: what the command for its kind prints.
    """
    async with call.bus(application_for_any_stream(), create=False) as bus:
        show_thing, *words = await _command(bus, thing)
    await show_thing(call, *words)


async def _command(bus: Bus, thing: str) -> tuple[Any, ...]:
    """Return the function that shows a thing, and its arguments without the first, which is the CommandCall."""
    async with bus.transaction() as transaction:
        if found := await _record_command(transaction, thing):
            return found
    if event := _uuid(thing):
        return await _bus_event_command(bus, event)
    if thing.startswith(_GENERAL):
        return _show_function("general"), thing
    from kingdom.cli.workflow import inspection

    if point := _CHECKPOINT_ID.fullmatch(thing):
        return inspection.checkpoints, (await find_workflow(bus, point[1])).id, point[2]
    if part := _WORK_OR_TASK_ID.fullmatch(thing):
        workflow = await find_workflow(bus, part[1])
        # A Work or Task is shown with its run.
        (find_task if part[3] else find_work)(workflow, part[2])
        return inspection.show, workflow.id
    try:
        return inspection.show, (await find_workflow(bus, thing)).id
    except Ambiguous:
        raise
    except NotFound:
        return petition.show, await _petition_id(bus, thing)


async def _record_command(transaction: Transaction, thing: str) -> tuple[Any, ...] | None:
    """Return the command for the id of a record, or for the beginning of the id of an event or assignment."""
    for kind, noun in _NOUNS.items():
        if await transaction.get(kind, thing):
            return _show_function(noun), thing
    for records in (EVENTS, ASSIGNMENTS):
        if thing.startswith(ID_PREFIXES[records.name]):
            record_id = await resolve_id(transaction, records, thing)
            # The id of a run contains that of its assignment, and the run may exist after the assignment was removed.
            if records is EVENTS or record_id != thing:
                return _show_function(_NOUNS[records.name]), record_id
    return None


async def _bus_event_command(bus: Bus, event: UUID) -> tuple[Any, ...]:
    """Return `bus dead show` for a dead letter, and `bus why` for any other event of the bus."""
    situations = await operations_of(bus).situations(event)
    if any(situation.status == "DEAD" for situation in situations):
        from kingdom.cli.bus import dead_letters

        return dead_letters.show, event
    from kingdom.cli.bus import commands

    return commands.why, event


def _show_function(noun: str) -> Callable[..., Awaitable[Any]]:
    """Return the function of `kingdom NOUN show`; only the module of that noun is loaded."""
    match noun:
        case "assignment":
            from kingdom.cli.court import assignment

            return assignment.show
        case "event":
            from kingdom.cli.event import commands

            return commands.show
        case "template":
            from kingdom.cli.resources import template

            return template.show
        case "git":
            from kingdom.cli.resources import git

            return git.show
        case "mcp":
            from kingdom.cli.resources import mcp

            return mcp.show
        case "general":
            from kingdom.cli.general import commands as general

            return general.show
    return petition.show


async def _petition_id(bus: Bus, text: str) -> str:
    """Return the id of a petition. This is the last search, so its error is about things of all kinds."""
    try:
        async with bus.transaction() as transaction:
            return (await petition.find_petition(transaction, text)).id
    except Ambiguous:
        raise
    except NotFound as error:
        raise NotFound(
            f"nothing has the id {text!r}: `kingdom ps --all` and `kingdom event list` show what exists"
        ) from error


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
