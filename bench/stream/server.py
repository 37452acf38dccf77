"""`python -m bench.stream.server URL PORT VARIANT`: a process that serves only the stream, perhaps broken."""

import asyncio
import sys

from aiohttp import web

from bench.servers import LOOPBACK
from bench.stream.store import open_store
from bench.stream.variants import SERVER_VARIANTS
from kingdom.bootstrap import operations_of
from kingdom.web.stream import PATH, LogStream


async def serve(url: str, port: int, variant: str) -> None:
    """Serve the stream until the process is killed."""
    SERVER_VARIANTS.get(variant, lambda: None)()
    async with open_store(url) as bus:
        app = web.Application()
        app.router.add_get(PATH, LogStream(operations_of(bus)).handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
