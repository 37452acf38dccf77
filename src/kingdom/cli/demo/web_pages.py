"""The web pages of the demo."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from kingdom.access.credentials import INVITE, INVITE_LASTS, Grant, issue
from kingdom.access.rights import Right
from kingdom.access.settings import WebSettings
from kingdom.bootstrap import operations_of, run_texts_of
from kingdom.clock import utc_now
from kingdom.demo.demo_court import DemoCourt
from kingdom.realm import read_realm
from kingdom.web.route import WebContext
from kingdom.web.server import WebServer
from kingdom.workflow.records import run_transaction


@asynccontextmanager
async def serve_pages(court: DemoCourt, person: str) -> AsyncIterator[str]:
    """Serve the pages of a court while the block runs. Return a link that signs a person in, once."""
    context = WebContext(
        bus=court.bus,
        operations=operations_of(court.bus),
        texts=run_texts_of(court.bus),
        settings=court.settings,
        realm=read_realm(court.settings.file),
        web=WebSettings(address="127.0.0.1:0"),
        directory=court.directory,
    )
    server = WebServer(context, CollectorRegistry())
    running = asyncio.create_task(server.run())
    try:
        grant = Grant(name=person, may=tuple(Right), lasts=INVITE_LASTS)
        act = partial(issue, kind=INVITE, grant=grant, by=court.settings.actor, now=utc_now())
        secret, _ = await run_transaction(court.bus, act)
        yield f"{server.url}/sign-in#{secret}"
    finally:
        server.stop()
        await running
