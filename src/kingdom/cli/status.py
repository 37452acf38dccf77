"""`kingdom status`: how the court stands, and what needs a person."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import msgspec
import typer

from kingdom.bootstrap import directory_of, generals_directory_of, operations_of
from kingdom.bus.port import Bus
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.court import COURT
from kingdom.cli.shape import one
from kingdom.cli.status_view import status_view
from kingdom.cli.watching import Watch, itself, tell, watch
from kingdom.court.heartbeat import ROLES
from kingdom.court.king.terms import Terms
from kingdom.court.package_files import load_packages
from kingdom.court.standing import Lookout, Standing, look
from kingdom.realm import Realm
from kingdom.settings import Settings

app = typer.Typer(add_completion=False)


@command(app, "status", answer=one(Standing))
async def status(call: Call, *, again: Watch = False) -> int | None:
    """Show how the court stands: health, roles, money, slots, what waits and why, and what needs a person.

    Exit codes: 0 all is well, 1 something needs a person: it is said what, and which command to use next.

    Example: kingdom status --watch

    JSON: {at, health: {level, reason, age_seconds}, roles: [{role, silent_seconds, is_well}], money: {spent, set_aside,
    limit, status}, slots: [{scope, held, limit}], undecided, waiting: {count, by_priority, by_reason, absent},
    assignments: {pending, in_progress, needs_human}, open_asks, dead_letters: {stream: count}, paused: {stream:
    reason}, hosts: [{name, status, slots, busy}], parked: [{workflow, until, reason}], troubles: [{what, command}]};
    counts stop at 1000; with --watch one per line, whenever something has changed.
    """
    async with call.bus(COURT, create=False) as bus:
        now = partial(look_now, bus, call.settings, call.realm)
        if again:
            await watch(call.output, now, status_view, itself, what_matters=_what_matters)
        standing = await now()
        tell(call.output, standing, status_view, itself)
    return exit_code.FAILED if standing.troubles else None


async def look_now(bus: Bus, settings: Settings, realm: Realm, running: frozenset[str] = frozenset()) -> Standing:
    """Return how the court stands now; `running` are roles whose process runs, though they may not have said so."""
    # The Generals may change while somebody watches.
    lookout = await asyncio.to_thread(lookout_of, settings, realm)
    return await look(bus, operations_of(bus), replace(lookout, running=running))


def lookout_of(settings: Settings, realm: Realm) -> Lookout:
    """Return what a look at the court needs."""
    loaded = load_packages(generals_directory_of(settings, realm), hears_strangers=realm.sentinel.hears_strangers)
    return Lookout(
        terms=Terms(packages=lambda: loaded.packages, zone=realm.zone, settings=realm.king),
        settings=realm.chamberlain,
        roles=ROLES,
        store=directory_of(settings.database_url),
        broken=loaded.broken,
    )


def _what_matters(standing: Standing) -> object:
    """Return how things stand without what changes while nothing happens: the time, and how long ago things were."""
    health = msgspec.structs.replace(standing.health, age_seconds=None)
    roles = tuple(msgspec.structs.replace(role, silent_seconds=None) for role in standing.roles)
    return msgspec.structs.replace(standing, at=datetime.min.replace(tzinfo=UTC), health=health, roles=roles)
