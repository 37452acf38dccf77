"""What the work costs: by day as a chart, by General, repository and model, and what the month will cost."""

from datetime import timedelta

from aiohttp import web

from kingdom.actions.costs import costs_query, sum_costs
from kingdom.views.costs import Costs
from kingdom.web.api.court import CostsQuery
from kingdom.web.pages.chart import ChartBar, chart_bars
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall

# The periods that a person chooses among, in days.
PERIODS = {"7 days": 7, "30 days": 30, "90 days": 90, "A year": 365}


def day_bars(costs: Costs, length: int) -> list[ChartBar]:
    """Return a bar for each day of a period. A day without costs has a bar without height."""
    known = {each.day: each.usd for each in costs.days}
    dates = [costs.since + timedelta(days=number) for number in range(length)]
    return chart_bars([(day.isoformat(), known.get(day, 0)) for day in dates])


async def show_costs(call: ApiCall) -> web.Response:
    """Show what the work costs."""
    query: CostsQuery = call.query
    realm, now = call.context.realm, call.context.clock()
    async with open_page(call, "/costs", [costs_query(realm, now, query.days)]) as page:
        costs = await sum_costs(page.transaction, realm, now, query.days)
        return page.render(
            "costs.html",
            costs=costs,
            bars=day_bars(costs, query.days),
            divisions={"General": costs.generals, "Repository": costs.repositories, "Model": costs.models},
            periods=PERIODS,
            query=query,
        )
