"""The overview: what needs a person, what is at work, and what has ended."""

from aiohttp import web

from kingdom.actions.overview import read_overview
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall


async def show_overview(call: ApiCall) -> web.Response:
    """Show what needs a person, what is at work, today's money, and the health."""
    context = call.context
    async with open_page(call, "/") as page:
        overview = await read_overview(page.transaction, context.operations, context.settings, context.realm, page.now)
        return page.render("overview.html", overview=overview, status=overview.status)
