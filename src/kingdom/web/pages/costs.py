"""What the work costs: by day as a chart, by General, repository and model, and what the month will cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from aiohttp import web

from kingdom.actions.costs import costs_query, sum_costs
from kingdom.views.costs import Costs, DayCost
from kingdom.web.api.court import CostsQuery
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall

# The periods that a person chooses among, in days.
PERIODS = {"7 days": 7, "30 days": 30, "90 days": 90, "A year": 365}
# A narrow gap between bars is lost on a phone.
_BARS_WITH_GAPS = 100
_GAP_SHARE = 0.24


@dataclass(frozen=True, slots=True)
class DayBar:
    """A bar of the chart, in percent of its width and height."""

    day: date
    usd: float
    x: float
    width: float
    height: float


def day_bars(days: Sequence[DayCost], since: date, until: date) -> list[DayBar]:
    """Return a bar for each day of a period. A day without costs has a bar without height."""
    known = {each.day: each.usd for each in days}
    length = (until - since).days + 1
    highest = max(known.values(), default=0) or 1
    step = 100 / length
    width = step * (1 - _GAP_SHARE) if length <= _BARS_WITH_GAPS else step
    dates = (since + timedelta(days=number) for number in range(length))
    return [
        DayBar(day, known.get(day, 0), number * step, width, 100 * known.get(day, 0) / highest)
        for number, day in enumerate(dates)
    ]


async def show_costs(call: ApiCall) -> web.Response:
    """Show what the work costs."""
    query: CostsQuery = call.query
    realm, now = call.context.realm, call.context.clock()
    async with open_page(call, "/costs", [costs_query(realm, now, query.days)]) as page:
        costs = await sum_costs(page.transaction, realm, now, query.days)
        return page.render(
            "costs.html",
            costs=costs,
            bars=day_bars(costs.days, costs.since, _last_day(costs, query.days)),
            highest=max((each.usd for each in costs.days), default=0.0),
            divisions={"General": costs.generals, "Repository": costs.repositories, "Model": costs.models},
            periods=PERIODS,
            query=query,
        )


def _last_day(costs: Costs, days: int) -> date:
    return costs.since + timedelta(days=days - 1)
