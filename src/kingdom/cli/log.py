"""`kingdom bus tail`: the log, read by cursor."""

import asyncio
from typing import Annotated, Any

import typer

from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.cli.command import Call, command
from kingdom.cli.output import shape
from kingdom.cli.shape import camel, lines

app = typer.Typer()
_PAGE = 500
_POLL_SECONDS = 0.5


@command(app, "tail", answer=lines(camel(LogEntry, "LoggedEntry", cursor=str)))
async def tail(
    call: Call,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until interrupted.")] = False,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="start|now|CURSOR", help="Where to begin; `now` with -f, else `start`."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this many entries.")] = None,
) -> None:
    """Show the log: what operators and handlers wrote, in the order of its transactions, without gap or double.

    Example: kingdom bus tail -f

    Example: kingdom bus tail --from 7431.12 --json

    JSON: an object {cursor, at, type, actor, traceId, aggregateType, aggregateId, data} per line; `--from CURSOR` goes
    on behind the entry that has it.
    """
    left = limit
    async with call.operations() as operations:
        cursor = await _begin(operations, start or ("now" if follow else "start"))
        while left is None or left > 0:
            page = await operations.read_log(cursor, min(_PAGE, left or _PAGE))
            for logged in page:
                _show(call, logged)
                cursor = logged.cursor
            if left is not None:
                left -= len(page)
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
        raise typer.BadParameter(f"{start!r} is no cursor: write start, now, or one that --json shows.") from error


def _show(call: Call, logged: LoggedEntry) -> None:
    if call.output.json:
        document: dict[str, Any] = {"cursor": str(logged.cursor), **shape(logged.entry)}
        call.output.document(document)
        return
    entry = logged.entry
    moment = entry.at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    what = f"{entry.aggregate_type}/{entry.aggregate_id} " if entry.aggregate_id else ""
    details = " ".join(f"{name}={value}" for name, value in entry.data.items())
    call.output.say(f"{moment} {logged.cursor} {entry.type} by {entry.actor}: {what}{details}")
