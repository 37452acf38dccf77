"""`kingdom cost`: what the work of the court costs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from kingdom.actions.costs import read_costs
from kingdom.bus.app import Application
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.clock import utc_now
from kingdom.court.king import records
from kingdom.court.king.costs import DAYS_KEPT
from kingdom.court.streams import TOPOLOGY
from kingdom.views.costs import Costs, NamedCost

app = typer.Typer(add_completion=False)
_APPLICATION = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=records.KINDS)


@command(app, "cost", result=one(Costs))
async def cost(
    call: CommandCall,
    *,
    days: Annotated[int, typer.Option(min=1, max=DAYS_KEPT, help="How many days to sum, today included.")] = 30,
) -> None:
    """Show what the work of Generals costs by day, General, repository and model, and a forecast for the month.

    For each General, the numbers of completed and failed assignments are shown too. A cost is counted on the day on
    which its assignment ends or starts to wait for a person. Runs that people start themselves are not included. The
    sums are kept for 400 days.

    Example: kingdom cost --days 7

    JSON: {today: {spent, set_aside, limit, status}, month: {spent, forecast}, since, usd, days: [{day, usd}], generals:
    [{name, usd, completed, failed}], repositories: [{name, usd}], models: [{name, usd}]}.
    """
    async with call.bus(_APPLICATION, create=False) as bus:
        found = await read_costs(bus, call.realm, utc_now(), days)
    if call.output.json:
        call.output.document(found)
        return
    today, month = found.today, found.month
    expected = f", about ${month.forecast:.2f} expected" if month.forecast is not None else ""
    call.output.say(
        f"Today: ${today.spent:.2f} of ${today.limit:.2f} spent, ${today.set_aside:.2f} reserved.",
        f"This month: ${month.spent:.2f} spent{expected}. Since {found.since}: ${found.usd:.2f} spent.",
    )
    if found.days:
        call.output.table(("day", "usd"), [(str(each.day), f"{each.usd:.2f}") for each in found.days])
    if found.generals:
        rows = [(each.name, f"{each.usd:.2f}", each.completed, each.failed) for each in found.generals]
        call.output.table(("General", "usd", "completed", "failed"), rows)
    for title, sums in (("repository", found.repositories), ("model", found.models)):
        _print(call, title, sums)


def _print(call: CommandCall, title: str, sums: Sequence[NamedCost]) -> None:
    if sums:
        call.output.table((title, "usd"), [(each.name, f"{each.usd:.2f}") for each in sums])
