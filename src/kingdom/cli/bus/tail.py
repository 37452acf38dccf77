"""`kingdom bus tail`: print the log."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import lines
from kingdom.errors import Misconfigured
from kingdom.settings import read_environment
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
            "--from",
            metavar="start|now|CURSOR",
            help="Where to begin; by default `now` with -f or --url, otherwise `start`.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many entries.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Follow the log of a `kingdom web` elsewhere.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="The token for --url; by default $KINGDOM_WEB_TOKEN."),
    ] = None,
) -> None:
    """Print the log: everything that happened, without gaps or duplicates, each cause before its effects.

    With --url, the log of a web server on another machine is followed. A lost connection is resumed without gaps.

    Example: kingdom bus tail -f

    Example: kingdom bus tail --url https://kingdom.example --token-file token.txt

    Example: kingdom bus tail --from 7431.12 --json

    JSON: an object {cursor, at, type, actor, traceId, aggregateType, aggregateId, data} per line; `--from CURSOR`
    continues after the entry with that cursor.
    """
    if url is not None:
        await _follow_url(call, url, _read_token(token_file), start or "now", limit)
        return
    if token_file is not None:
        raise typer.BadParameter("--token-file is only for --url.")
    await _read(call, start or ("now" if follow else "start"), limit, follow=follow)


async def _read(call: CommandCall, start: str, limit: int | None, *, follow: bool) -> None:
    remaining = limit
    async with call.operations() as operations:
        cursor = await _begin(operations, start)
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


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return read_environment("KINGDOM_WEB_TOKEN")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        cause = f"the token in {file} cannot be read: {error}"
        raise Misconfigured(f"{cause}: name the file that has what `kingdom web token create` printed") from error


async def _follow_url(call: CommandCall, url: str, token: str | None, start: str, limit: int | None) -> None:
    # aiohttp would slow down every other command.
    from kingdom.cli.bus.stream_client import StreamClient  # noqa: PLC0415 - loaded on demand

    def note(reason: str) -> None:
        call.output.note(f"cannot reach {url} ({reason}), trying again")

    shown = 0
    async for message in StreamClient(url, token, start, note).messages():
        if message.event == "reset":
            call.output.note("The log no longer has the entries at this position; continuing with new entries.")
        if message.event != "entry":
            continue
        if call.output.json:
            call.output.document(msgspec.json.decode(message.data))
        else:
            _show(call, _to_logged_entry(message.data))
        shown += 1
        if shown == limit:
            return


def _to_logged_entry(data: bytes) -> LoggedEntry:
    view: Any = msgspec.json.decode(data, type=LoggedEntryView)
    entry = LogEntry(**{each.name: getattr(view, each.name) for each in fields(LogEntry)})
    return LoggedEntry(LogCursor.parse(view.cursor), entry)


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
