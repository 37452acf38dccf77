"""`kingdom show`: find the thing with an id, and show it as its own command does."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.court import petition
from kingdom.cli.framework.command import CommandCall, command, undeclared
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import BEGINNINGS, find_task, find_work, find_workflow, resolve_id
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.errors import Ambiguous, NotFound
from kingdom.workflow.records import GITS, MCP_SERVERS, TEMPLATES

app = typer.Typer(add_completion=False)
# The nouns whose records have an id or name, in the order of the search.
_NOUNS: Mapping[str, str] = {
    ASSIGNMENTS.name: "assignment",
    EVENTS.name: "event",
    PETITIONS.name: "petition",
    TEMPLATES.name: "template",
    GITS.name: "git",
    MCP_SERVERS.name: "mcp",
}
_GENERAL = "gen-"
_POINT = re.compile(r"(.+)-(w\d+-c\d+)")
_PART = re.compile(r"(.+)-(w\d+(-t\d+)?)")


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
    """Show the thing with an id as its own command does: `kingdom workflow show` for a run, and so on.

    Example: kingdom show last

    Example: kingdom show task-20260207-001

    JSON: what the command of that thing prints.
    """
    async with call.bus(undeclared(), create=False) as bus:
        show_thing, *words = await _command(bus, thing)
    await show_thing(call, *words)


async def _command(bus: Bus, thing: str) -> tuple[Any, ...]:
    """Return the function that shows a thing, and its arguments after the call."""
    async with bus.transaction() as transaction:
        for kind, noun in _NOUNS.items():
            if await transaction.get(kind, thing):
                return _show_of(noun), thing
        if thing.startswith(BEGINNINGS[EVENTS.name]):
            return _show_of("event"), await resolve_id(transaction, EVENTS, thing)
    if event := _uuid(thing):
        return await _of_bus(bus, event)
    if thing.startswith(_GENERAL):
        return _show_of("general"), thing
    from kingdom.cli.workflow import inspection

    if point := _POINT.fullmatch(thing):
        return inspection.checkpoints, (await find_workflow(bus, point[1])).id, point[2]
    if part := _PART.fullmatch(thing):
        workflow = await find_workflow(bus, part[1])
        # A Work or Task is shown with its run.
        (find_task if part[3] else find_work)(workflow, part[2])
        return inspection.show, workflow.id
    try:
        return inspection.show, (await find_workflow(bus, thing)).id
    except Ambiguous:
        raise
    except NotFound:
        return petition.show, await _petition(bus, thing)


async def _of_bus(bus: Bus, event: UUID) -> tuple[Any, ...]:
    """Return the function that shows an event of the bus: as a dead letter, or else where it is."""
    situations = await operations_of(bus).situations(event)
    if any(situation.status == "DEAD" for situation in situations):
        from kingdom.cli.bus import dead_letters

        return dead_letters.show, event
    from kingdom.cli.bus import commands

    return commands.why, event


def _show_of(noun: str) -> Callable[..., Awaitable[Any]]:
    """Return the function behind the verb `show` of a noun, and load only that noun."""
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


async def _petition(bus: Bus, text: str) -> str:
    """Return the id of the petition that a text names; nothing else has matched."""
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
