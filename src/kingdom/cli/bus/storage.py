"""`kingdom storage …`: move everything from one store to another through a file."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import transfer_of
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, application_for_any_stream, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import AdvanceProgress
from kingdom.clock import utc_now
from kingdom.errors import Transient
from kingdom.roles import KINDS
from kingdom.storage.export_file import new_export, read_header, read_items
from kingdom.storage.transfer import AnyItem, ItemCounts, Manifest, StoreTransfer
from kingdom.views.storage import ExportResult, ImportResult

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Move everything to another store.")


@command(app, "export", result=one(ExportResult))
async def export(
    call: CommandCall,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; compressed if its name ends with .gz.")],
) -> int | None:
    """Export the store to one file: events, records, dedup keys, pauses and the log, but not transcripts and diffs.

    First stop everything that uses the store: later writes are not in the file, and then the exit code is 1. The store
    is not changed, except that expired leases are released first.

    Example: kingdom storage export kingdom.jsonl.gz

    JSON: {file, from, exported}, where exported has the number of openEvents, deadEvents, endedEvents, blockedKeys,
    records, dedupKeys, pausedStreams, logEntries and transportPositions.
    """
    async with _open_store(call, create=False) as store:
        async with store.snapshot() as snapshot:
            census = snapshot.manifest.census
            with (
                call.output.progress("Exporting", census.total) as advance,
                new_export(file, store.store, snapshot.manifest, utc_now()) as add,
            ):
                async for item in snapshot.items:
                    add(item)
                    advance()
        changed = await _has_changed(store, snapshot.manifest)
    if call.output.json:
        call.output.document(ExportResult(file=str(file), source=store.store, exported=census))
    else:
        call.output.table(("what", "exported"), census.numbers().items())
    if changed:
        call.output.note(
            "The store changed during the export, and the file lacks these changes: stop what uses the store,"
            " and export again."
        )
        return exit_code.FAILED
    call.output.say(f"Exported everything to {file}. Import it elsewhere: kingdom storage import {file}")
    return None


@command(app, "import", result=one(ImportResult))
async def import_(
    call: CommandCall,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A file that `export` wrote.")
    ],
) -> None:
    """Import a file into an empty store, completely or not at all. Open work continues in the new store.

    The whole file is checked before anything is written.

    Example: kingdom storage import kingdom.jsonl.gz --database-url postgresql://user@host/database

    JSON: {file, from, to, exported, imported}, where exported and imported have the numbers that `export` shows.
    """
    header = read_header(file)
    exported = header.manifest.census
    with call.output.progress("Checking", exported.total) as advance:
        for _ in read_items(file):
            advance()
    async with _open_store(call, create=True) as store:
        with call.output.progress("Importing", exported.total) as advance:
            imported = await store.import_items(_with_progress(read_items(file), advance), header.manifest)
    if call.output.json:
        names = {"file": str(file), "source": header.source, "target": store.store}
        call.output.document(ImportResult(**names, exported=exported, imported=imported))
    else:
        call.output.table(("what", "exported", "imported"), _side_by_side(exported, imported))
    call.output.say("Imported and counted everything. Log cursors start over; everything else continues where it was.")


@asynccontextmanager
async def _open_store(call: CommandCall, *, create: bool) -> AsyncIterator[StoreTransfer]:
    # The record kinds decide where a store of files keeps its files. Without --app, the kinds of a court are used.
    application = call.application() or replace(application_for_any_stream(), kinds=KINDS)
    async with call.bus(application, create=create) as bus:
        yield transfer_of(bus)


async def _has_changed(store: StoreTransfer, since: Manifest) -> bool:
    try:
        async with store.snapshot() as now:
            return now.manifest != since
    except Transient:
        # The store cannot be read now, because another process uses it.
        return True


async def _with_progress(items: Iterable[AnyItem], advance: AdvanceProgress) -> AsyncIterator[AnyItem]:
    for item in items:
        yield item
        advance()


def _side_by_side(exported: ItemCounts, imported: ItemCounts) -> list[tuple[str, int, int]]:
    there = imported.numbers()
    return [(name, number, there[name]) for name, number in exported.numbers().items()]
