"""`kingdom explain`: one timeline from the event outside to the result."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.command import Call, command
from kingdom.cli.court import ConfigFile
from kingdom.cli.explain_page import page
from kingdom.cli.explain_view import explain_view
from kingdom.cli.workflow_id import find_workflow
from kingdom.clock import utc_now
from kingdom.court.explain.material import gather
from kingdom.court.explain.tell import tell
from kingdom.court.explain.timeline import Timeline
from kingdom.errors import Misconfigured, NotFound
from kingdom.realm import find_realm_file, read_realm
from kingdom.roles import declared

app = typer.Typer(add_completion=False)
_WHOLE_IDS = ("evt-", "task-")
_NAMED_WHOLE = (
    "an assignment or an event is named by its whole id, such as task-20260207-001: `kingdom event list` shows events"
)


@command(app, "explain")
async def explain(
    call: Call,
    about: Annotated[
        str,
        typer.Argument(
            metavar="TASK|EVENT|RUN",
            help="The id of an assignment, an event or a run; of a run its beginning or end, or `last`.",
        ),
    ],
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page that needs nothing else.")
    ] = None,
    config: ConfigFile = None,
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
    realm, _ = read_realm(config or find_realm_file())
    call = call.in_realm(realm.database_url)
    async with call.bus(declared(realm), create=False) as bus:
        timeline = await _timeline(bus, about)
    if html:
        await asyncio.to_thread(_write, html, page(timeline, utc_now()))
    if call.output.json:
        call.output.document(timeline)
    elif html:
        call.output.say(f"{about} is explained in {html}: open it in a browser.")
    else:
        call.output.console.print(explain_view(timeline, utc_now()))


async def _timeline(bus: Bus, about: str) -> Timeline:
    operations = operations_of(bus)
    try:
        return tell(await gather(bus, operations, about))
    except NotFound:
        if about.startswith(_WHOLE_IDS):
            raise
    try:
        # Looking for a part of an id reads every run, so it comes last.
        run = await find_workflow(bus, about)
    except NotFound as error:
        raise NotFound(f"{error}; {_NAMED_WHOLE}") from error
    return tell(await gather(bus, operations, run.id))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(
            f"the page cannot be written ({error}): name a file in a directory that is there"
        ) from error
