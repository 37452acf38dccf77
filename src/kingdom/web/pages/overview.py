"""The overview: what needs a person, what is at work, and what has ended."""

import asyncio

from aiohttp import web

from kingdom.actions.overview import overview_queries, read_overview
from kingdom.actions.status import status_sources_of
from kingdom.web.pages.chart import minute_bars
from kingdom.web.pages.frame import open_page
from kingdom.web.pages.run_rows import run_row
from kingdom.web.pages.wording import ago, since
from kingdom.web.route import ApiCall


async def show_overview(call: ApiCall) -> web.Response:
    """Show what needs a person, what is at work, today's money, and the health."""
    context, now = call.context, call.context.clock()
    cursor, streams = await context.operations.log_end(), await context.operations.stats()
    sources = await asyncio.to_thread(status_sources_of, context.settings, context.realm)
    async with open_page(call, "/", overview_queries(now), cursor=cursor) as page:
        overview = await read_overview(page.transaction, streams, sources, now)
        return page.render(
            "overview.html",
            overview=overview,
            status=overview.status,
            bars=minute_bars(overview.minutes),
            active=[
                run_row(run, call.visitor, since(run.started_at or run.created_at, now)) for run in overview.active
            ],
            ended=[run_row(run, call.visitor, ago(run.ended_at or run.created_at, now)) for run in overview.ended],
        )
