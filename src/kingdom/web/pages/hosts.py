"""Hosts and health: heartbeats, slots, leases, and how much of its machines the court uses."""

import asyncio

from aiohttp import web

from kingdom.actions.health import read_machines
from kingdom.actions.listings import list_records, records_query
from kingdom.actions.status import status_sources_of
from kingdom.court.chamberlain.health import RESOURCE_NAMES
from kingdom.court.status import build_status, status_queries
from kingdom.web.pages.frame import open_page
from kingdom.web.route import ApiCall, PageQuery
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.records import HOSTS

# The CSS class of each level of health.
_CSS_CLASSES = {"green": "good", "yellow": "ask", "orange": "bad", "red": "bad", "unknown": "idle"}


async def show_hosts(call: ApiCall) -> web.Response:
    """Show the machines that run agents, the roles of the court, and the health."""
    query: PageQuery = call.query
    context, now = call.context, call.context.clock()
    first = records_query(HOSTS, after=query.after, limit=query.limit)
    cursor, streams = await context.operations.log_end(), await context.operations.stats()
    sources = await asyncio.to_thread(status_sources_of, context.settings, context.realm)
    async with open_page(call, "/hosts", [first, *status_queries(now)], cursor=cursor) as page:
        status = await build_status(page.transaction, streams, sources, now)
        found = await list_records(page.transaction, HOSTS, after=query.after, limit=query.limit)
        return page.render(
            "hosts.html",
            status=status,
            hosts=found.read(Host),
            following=found.next,
            machines=await read_machines(page.transaction, context.realm.chamberlain.health),
            css_classes=_CSS_CLASSES,
            resources=RESOURCE_NAMES,
        )
