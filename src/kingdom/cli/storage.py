"""`kingdom storage …`: moving house, from one store through a file into another."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kingdom.bootstrap import transfer_of
from kingdom.cli.command import Call, command, undeclared
from kingdom.cli.output import Advance
from kingdom.cli.shape import one
from kingdom.clock import utc_now
from kingdom.errors import Transient
from kingdom.roles import KINDS
from kingdom.storage.archive_file import new_archive, read_header, read_items
from kingdom.storage.transfer import AnyItem, ItemCounts, Manifest, StoreTransfer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The store behind it: move everything to another one."
)


class Exported(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """What a store of some kind had to give."""

    file: str
    source: str
    exported: ItemCounts


class Imported(Exported, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """What was in a file, and what a store of some kind has of it now."""

    target: str
    imported: ItemCounts


@command(app, "export", answer=one(Exported))
async def export(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; compressed if its name ends with .gz.")],
) -> None:
    """Write everything that a store holds into one file: events, records, dedup keys, pauses and the log.

    Stop everything that uses the store first: what is written after the export has begun is not in the file. The
    store stays as it is, but for expired leases, which are given back first.

    Example: kingdom storage export kingdom.jsonl.gz

    JSON: {file, from, exported}, where exported has the number of openEvents, deadEvents, endedEvents, blockedKeys,
    records, dedupKeys, pausedStreams and logEntries.
    """
    async with _opened(call, create=False) as store:
        async with store.snapshot() as snapshot:
            census = snapshot.manifest.census
            with (
                call.output.progress("Exporting", census.total) as advance,
                new_archive(file, store.store, snapshot.manifest, utc_now()) as add,
            ):
                async for item in snapshot.items:
                    add(item)
                    advance()
        changed = await _has_changed(store, snapshot.manifest)
    if call.output.json:
        call.output.document(Exported(file=str(file), source=store.store, exported=census))
    else:
        call.output.table(("what", "exported"), census.numbers().items())
    call.output.say(f"Everything is in {file}. Import it elsewhere: kingdom storage import {file}")
    if changed:
        call.output.note("The store changed meanwhile, which is not in the file: stop whatever uses it, export again.")


@command(app, "import", answer=one(Imported))
async def import_(
    call: Call,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A file that `export` has written.")
    ],
) -> None:
    """Bring everything from a file into an empty store, or nothing of it; open work goes on there.

    The whole file is checked before anything is written.

    Example: kingdom storage import kingdom.jsonl.gz --database-url postgresql://user@host/database

    JSON: {file, from, to, exported, imported}, the last two with the same numbers as `export` shows.
    """
    header = read_header(file)
    exported = header.manifest.census
    with call.output.progress("Checking", exported.total) as advance:
        for _ in read_items(file):
            advance()
    async with _opened(call, create=True) as store:
        with call.output.progress("Importing", exported.total) as advance:
            imported = await store.take_in(_passing(read_items(file), advance), header.manifest)
    if call.output.json:
        names = {"file": str(file), "source": header.source, "target": store.store}
        call.output.document(Imported(**names, exported=exported, imported=imported))
    else:
        call.output.table(("what", "exported", "imported"), _side_by_side(exported, imported))
    call.output.say("Everything is in, and counted. Log cursors begin anew; everything else goes on where it was.")


@asynccontextmanager
async def _opened(call: Call, *, create: bool) -> AsyncIterator[StoreTransfer]:
    # Files lie where their kind says, and without another word the store is that of a court.
    house = call.application() or replace(undeclared(), kinds=KINDS)
    async with call.bus(house, create=create) as bus:
        yield transfer_of(bus)


async def _has_changed(store: StoreTransfer, since: Manifest) -> bool:
    try:
        async with store.snapshot() as now:
            return now.manifest != since
    except Transient:
        # Somebody is at work in it again.
        return True


async def _passing(items: Iterable[AnyItem], advance: Advance) -> AsyncIterator[AnyItem]:
    for item in items:
        yield item
        advance()


def _side_by_side(exported: ItemCounts, imported: ItemCounts) -> list[tuple[str, int, int]]:
    there = imported.numbers()
    return [(name, number, there[name]) for name, number in exported.numbers().items()]
