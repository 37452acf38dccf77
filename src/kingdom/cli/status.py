"""`kingdom status`: how the court stands, and what needs a person."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from kingdom.bootstrap import directory_of, operations_of
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.court import ConfigFile
from kingdom.cli.status_view import status_view
from kingdom.court.king.terms import Terms
from kingdom.court.package_files import load_packages
from kingdom.court.standing import Lookout, Standing, look
from kingdom.realm import Realm, find_realm_file, read_realm
from kingdom.roles import declared
from kingdom.settings import Settings
from kingdom.supervisor.processes import ORDER

app = typer.Typer(add_completion=False)
_EVERY_SECONDS = 2.0


@command(app, "status")
async def status(
    call: Call,
    *,
    config: ConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until interrupted.")] = False,
) -> int | None:
    """Show how the court stands: health, roles, money, slots, what waits and why, and what needs a person.

    Exit codes: 0 all is well, 1 something needs a person: it is said what, and which command to use next.

    Example: kingdom status --watch

    JSON: {at, health: {level, reason, age_seconds}, roles: [{role, silent_seconds, is_well}], money: {spent, set_aside,
    limit, status}, slots: [{scope, held, limit}], undecided, waiting: {count, by_priority, by_reason, absent},
    assignments: {pending, in_progress, needs_human}, open_asks, dead_letters: {stream: count}, paused: {stream:
    reason}, hosts: [{name, status, slots, busy}], parked: [{workflow, until, reason}], troubles: [{what, command}]};
    counts stop at 1000; with --watch one per line.
    """
    realm, beside = read_realm(config or find_realm_file())
    call = call.in_realm(realm.database_url)
    async with call.bus(declared(realm), create=False) as bus:

        async def now() -> Standing:
            # The Generals may change while somebody watches.
            lookout = await asyncio.to_thread(lookout_of, call.settings, realm, beside)
            return await look(bus, operations_of(bus), lookout)

        standing = await now()
        if not watch:
            _tell(call, standing)
        elif call.output.json or not call.output.console.is_terminal:
            while True:
                _tell(call, standing)
                await asyncio.sleep(_EVERY_SECONDS)
                standing = await now()
        else:
            with Live(console=call.output.console, auto_refresh=False) as live, suppress(asyncio.CancelledError):
                while True:
                    live.update(status_view(standing), refresh=True)
                    await asyncio.sleep(_EVERY_SECONDS)
                    standing = await now()
    return exit_code.FAILED if standing.troubles else None


def lookout_of(settings: Settings, realm: Realm, beside: Path) -> Lookout:
    """Return what a look at the court needs."""
    loaded = load_packages(beside / realm.generals)
    return Lookout(
        terms=Terms(packages=lambda: loaded.packages, zone=realm.zone, settings=realm.king),
        settings=realm.chamberlain,
        roles=ORDER,
        store=directory_of(settings.database_url),
        broken=loaded.broken,
    )


def _tell(call: Call, standing: Standing) -> None:
    if call.output.json:
        call.output.document(standing)
    else:
        call.output.console.print(status_view(standing))
