"""`kingdom bus tail`: print the log."""

import asyncio
from typing import Annotated, Any

import typer

from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import lines
from kingdom.views.bus import LoggedEntryView
from kingdom.views.camel import to_json_object

app = typer.Typer()
_PAGE_SIZE = 500
_POLL_SECONDS = 0.5


@command(app, "tail", result=lines(LoggedEntryView))
async def tail(
    call: CommandCall,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="start|now|CURSOR", help="Where to begin; by default `now` with -f, otherwise `start`."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many entries.")] = None,
) -> None:
    """Print the log of operators and handlers in transaction order, without gaps or duplicates.

    Example: kingdom bus tail -f

    Example: kingdom bus tail --from 7431.12 --json

    JSON: an object {cursor, at, type, actor, traceId, aggregateType, aggregateId, data} per line; `--from CURSOR`
    continues after the entry with that cursor.
    """
    remaining = limit
    async with call.operations() as operations:
        cursor = await _begin(operations, start or ("now" if follow else "start"))
        while remaining is None or remaining > 0:
            page = await operations.read_log(cursor, min(_PAGE_SIZE, remaining or _PAGE_SIZE))
            for logged in page:
                _show(call, logged)
                cursor = logged.cursor
            if remaining is not None:
                remaining -= len(page)
            if not page:
                if not follow:
                    return
                await asyncio.sleep(_POLL_SECONDS)


async def _begin(operations: Operations, start: str) -> LogCursor:
    if start == "start":
        return LogCursor()
    if start == "now":
        return await operations.log_end()
    try:
        return LogCursor.parse(start)
    except ValueError as error:
        raise typer.BadParameter(f"{start!r} is not a cursor: write start, now, or a cursor from --json.") from error


def _show(call: CommandCall, logged: LoggedEntry) -> None:
    if call.output.json:
        document: dict[str, Any] = {"cursor": str(logged.cursor), **to_json_object(logged.entry)}
        call.output.document(document)
        return
    entry = logged.entry
    moment = entry.at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    what = f"{entry.aggregate_type}/{entry.aggregate_id} " if entry.aggregate_id else ""
    details = " ".join(f"{name}={value}" for name, value in entry.data.items())
    call.output.say(f"{moment} {logged.cursor} {entry.type} by {entry.actor}: {what}{details}")
