"""`kingdom explain`: one timeline from the event outside to the result."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.court.declarations import COURT
from kingdom.cli.explain.page import page
from kingdom.cli.explain.view import explain_view
from kingdom.cli.shared.command import CommandCall, command
from kingdom.cli.shared.json_result import one
from kingdom.cli.shared.workflow_ids import BEGINNINGS, find_workflow, resolve_id
from kingdom.clock import utc_now
from kingdom.court.explain.material import gather
from kingdom.court.explain.tell import tell
from kingdom.court.explain.timeline import Timeline
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.errors import Ambiguous, Misconfigured, NotFound

app = typer.Typer(add_completion=False)
_BEGINS = "an assignment or an event is named by where its id begins, evt- or task-: `kingdom event list` shows events"


@command(app, "explain", result=one(Timeline))
async def explain(
    call: CommandCall,
    about: Annotated[
        str,
        typer.Argument(
            metavar="TASK|EVENT|RUN",
            help="The id of an assignment, an event or a run, or where it begins; of a run its end, too, or `last`.",
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page that needs nothing else.")
    ] = None,
) -> None:
    """Tell what became of something, from the event outside to the result: who decided what and why, and its cost.

    Everything is read from the store; nobody has to be running.

    Example: kingdom explain task-20260207-001

    Example: kingdom explain last --html story.html

    JSON: {about, event: {id, type, source, repo, subject, priority, created_at, status, outcome, reason}, status,
    begun_at, ended_at, seconds, cost_usd, crashes, retries, strands: [{id, general, rule, priority, resumed_as,
    workflow_id, status, reason, summary, waited_seconds, begun_at, ended_at, cost_usd, works, questions, outputs}],
    moments: [{at, kind, who, what, why, strand, work_id, seconds, cost_usd}], missing}; docs/explain.md has all of it.
    """
    async with call.bus(COURT, create=False) as bus:
        timeline = await timeline_of(bus, about)
    if html:
        await asyncio.to_thread(_write, html, page(timeline, utc_now()))
    if call.output.json:
        call.output.document(timeline)
    elif html:
        call.output.say(f"{timeline.about} is explained in {html}: open it in a browser.")
    else:
        call.output.console.print(explain_view(timeline, utc_now()))


async def timeline_of(bus: Bus, about: str) -> Timeline:
    """Return what became of an assignment, an event or a run, of which a part of the id may do."""
    operations = operations_of(bus)
    try:
        return tell(await gather(bus, operations, about))
    except NotFound:
        meant = await _meant(bus, about)
        if meant == about:
            raise
    return tell(await gather(bus, operations, meant))


async def _meant(bus: Bus, about: str) -> str:
    """Return the id that begins so, or that of a run of which any part may do."""
    for kind in (EVENTS, ASSIGNMENTS):
        if about.startswith(BEGINNINGS[kind.name]):
            async with bus.transaction() as transaction:
                return await resolve_id(transaction, kind, about)
    try:
        # Looking for a part of an id reads every run, so it comes last.
        return (await find_workflow(bus, about)).id
    except Ambiguous:
        raise
    except NotFound as error:
        raise NotFound(f"{error}; {_BEGINS}") from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(
            f"the page cannot be written ({error}): name a file in a directory that is there"
        ) from error
