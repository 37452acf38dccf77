"""`kingdom simulate`: show what other rules would have decided."""

from typing import Annotated

import typer

from kingdom.bootstrap import operations_of
from kingdom.cli.court.declarations import COURT, Rules, king_context_of
from kingdom.cli.framework import inputs
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.clock import utc_now
from kingdom.court.king.simulation import RoutingDifference, RoutingSimulation
from kingdom.court.king.simulation import simulate_routing as replay
from kingdom.court.status import count_noun

app = typer.Typer(add_completion=False)


@command(app, "simulate", result=one(RoutingSimulation))
async def simulate(
    call: CommandCall,
    *,
    since: Annotated[str, typer.Option(help="How far back: 12h, 7d.")] = "7d",
    rules: Rules = "",
) -> None:
    """Route stored events by the rules in a directory, and show which decisions would change.

    Nothing is changed. Events that are no longer in the store are only counted.

    Example: kingdom simulate --since 7d --rules draft/generals

    JSON: {since, differences: [{event_id, type, repo, change, before: [general], after: [general], considered}],
    unchanged, forgotten, more}.
    """
    start = utc_now() - inputs.duration(since)
    packages = king_context_of(call, rules).packages()
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        found = await replay(transaction, operations_of(bus), packages, start, call.note_unreadable)
    if call.output.json:
        call.output.document(found)
        return
    if found.differences:
        columns = ("event", "type", "repo", "what changes", "before", "after")
        call.output.table(columns, [_row(each) for each in found.differences])
    call.output.say(
        f"{count_noun(len(found.differences), 'event')} would be routed differently, {found.unchanged} would not;"
        f" {found.forgotten} {'is' if found.forgotten == 1 else 'are'} no longer in the store."
    )


def _row(each: RoutingDifference) -> tuple[object, ...]:
    return (
        each.event_id,
        each.type,
        each.repo,
        each.change,
        ", ".join(each.before) or None,
        ", ".join(each.after) or None,
    )
