"""`kingdom explain`: show the timeline from an event to its result."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kingdom.actions.status import status_sources_of
from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.court.declarations import COURT
from kingdom.cli.explain.view import explain_view
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import ID_PREFIXES, find_workflow, resolve_id
from kingdom.clock import utc_now
from kingdom.court.explain.timeline import Timeline
from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.timeline_data import gather_data
from kingdom.court.followups.summary import FollowPolicies
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.errors import Ambiguous, Misconfigured, NotFound

app = typer.Typer(add_completion=False)
_PREFIX_HINT = "ids of events begin with evt-, of assignments with task-: `kingdom event list` shows events"


@command(app, "explain", result=one(Timeline))
async def explain(
    call: CommandCall,
    about: Annotated[
        str,
        typer.Argument(
            metavar="ASSIGNMENT|EVENT|RUN",
            help="The id of an assignment, event or run, or its beginning; for a run also its end, or `last`.",
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML page.")
    ] = None,
) -> None:
    """Show the timeline from an event to its result: who decided what and why, how long it took, and its cost.

    Everything is read from the store; no role has to be running.

    Example: kingdom explain task-20260207-001

    Example: kingdom explain last --html story.html

    JSON: {about, event: {id, type, source, repo, subject, priority, created_at, status, outcome, reason}, status,
    begun_at, ended_at, seconds, cost_usd, crashes, retries, strands: [{id, general, rule, priority, resumed_as,
    workflow_id, status, reason, summary, waited_seconds, begun_at, ended_at, cost_usd, works, questions, outputs,
    followups}], moments: [{at, kind, who, what, why, strand, work_id, seconds, cost_usd}], missing}; docs/explain.md
    has all of it.
    """
    async with call.bus(COURT, create=False) as bus:
        sources = await asyncio.to_thread(status_sources_of, call.settings, call.realm)
        timeline = await timeline_of(bus, about, sources.king.follow_policy)
    if html:
        # Imported on use, since the templates load slowly.
        from kingdom.web.pages.story import page

        await asyncio.to_thread(_write, html, page(timeline, utc_now()))
    if call.output.json:
        call.output.document(timeline)
    elif html:
        call.output.say(f"Wrote the timeline of {timeline.about} to {html}: open it in a browser.")
    else:
        call.output.console.print(explain_view(timeline, utc_now()))


async def timeline_of(bus: Bus, about: str, policies: FollowPolicies) -> Timeline:
    """Return the timeline of an assignment, event or run, given its id or a part of it."""
    operations = operations_of(bus)
    try:
        return build_timeline(await gather_data(bus, operations, about, policies))
    except NotFound:
        resolved = await _resolve(bus, about)
        if resolved == about:
            raise
    return build_timeline(await gather_data(bus, operations, resolved, policies))


async def _resolve(bus: Bus, about: str) -> str:
    """Return the whole id of an event, assignment or run, given a part of the id."""
    for kind in (EVENTS, ASSIGNMENTS):
        if about.startswith(ID_PREFIXES[kind.name]):
            async with bus.transaction() as transaction:
                return await resolve_id(transaction, kind, about)
    try:
        # Searching for a part of an id reads every run, so it comes last.
        return (await find_workflow(bus, about)).id
    except Ambiguous:
        raise
    except NotFound as error:
        raise NotFound(f"{error}; {_PREFIX_HINT}") from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(f"the page cannot be written ({error}): name a file in an existing directory") from error
