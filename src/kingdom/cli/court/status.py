"""`kingdom status`: show the state of the court and what needs a person."""

from datetime import UTC, datetime
from functools import partial

import msgspec
import typer

from kingdom.actions.status import read_current_status
from kingdom.cli.court.declarations import COURT
from kingdom.cli.court.status_view import status_view
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.watching import Watch, identity, print_state, watch
from kingdom.court.status import CourtStatus

app = typer.Typer(add_completion=False)


@command(app, "status", result=one(CourtStatus))
async def status(call: CommandCall, *, repeat: Watch = False) -> int | None:
    """Show the state of the court: health, roles, money, slots, what waits and why, and what needs a person.

    Exit codes: 0 everything works, 1 something needs a person; the output says what, and which command to use next.

    Example: kingdom status --watch

    JSON: {at, health: {level, reason, age_seconds, stops_work, effect}, roles: [{role, silent_seconds, is_well}],
    money: {spent, set_aside, limit, status}, slots: [{scope, held, limit}], undecided, waiting: {count, by_priority,
    by_reason, absent}, assignments: {pending, in_progress, needs_human}, open_asks, dead_letters: {stream: count},
    paused: {stream: reason}, hosts: [{name, status, slots, busy}], parked: [{workflow, until, reason}],
    followups: [the fields of `followup list`], troubles: [{what, command}]}; counts stop at 1000; with --watch one
    document per line whenever something changes.
    """
    async with call.bus(COURT, create=False) as bus:
        now = partial(read_current_status, bus, call.settings, call.realm)
        if repeat:
            await watch(call.output, now, status_view, identity, relevant=_without_ages)
        court_status = await now()
        print_state(call.output, court_status, status_view, identity)
    return exit_code.FAILED if court_status.troubles else None


def _without_ages(court_status: CourtStatus) -> object:
    """Return the state without the time and ages, which always change."""
    health = msgspec.structs.replace(court_status.health, age_seconds=None)
    roles = tuple(msgspec.structs.replace(role, silent_seconds=None) for role in court_status.roles)
    return msgspec.structs.replace(court_status, at=datetime.min.replace(tzinfo=UTC), health=health, roles=roles)
