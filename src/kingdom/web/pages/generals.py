"""Generals: what each listens to, may do, costs and achieves, and what a change of its rules would change."""

import asyncio

from aiohttp import web

from kingdom.actions.costs import costs_query, sum_costs
from kingdom.court.package import Package
from kingdom.court.package_files import GENERAL_FILE, read_files
from kingdom.views.costs import GeneralCost
from kingdom.web.api import court
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall

# The period of costs and successes.
DAYS = 30


async def show_generals(call: ApiCall) -> web.Response:
    """Show every General with what it listens to, costs and achieves."""
    realm, now = call.context.realm, call.context.clock()
    loaded = await asyncio.to_thread(call.context.load_packages)
    async with open_page(call, "/generals", [costs_query(realm, now, DAYS)]) as page:
        costs = await sum_costs(page.transaction, realm, now, DAYS)
        return page.render(
            "generals.html",
            packages=loaded.packages,
            broken=loaded.broken,
            directory=str(call.context.generals_directory),
            numbers={each.name: each for each in costs.generals},
            nothing=GeneralCost(name="", usd=0, completed=0, failed=0),
        )


async def show_general(call: ApiCall) -> web.Response:
    """Show a General with its package, and a form that simulates a change of its rules."""
    realm, now = call.context.realm, call.context.clock()
    package: Package = await court.show_general(call)
    files = await asyncio.to_thread(read_files, package)
    async with open_page(call, "/generals", [costs_query(realm, now, DAYS)]) as page:
        costs = await sum_costs(page.transaction, realm, now, DAYS)
        nothing = GeneralCost(name=package.name, usd=0, completed=0, failed=0)
        return page.render(
            "general.html",
            package=package,
            general=package.general,
            files=files,
            definition=files.get(GENERAL_FILE, ""),
            numbers=next((each for each in costs.generals if each.name == package.name), nothing),
        )
