"""A Sentinel as its own process, to be killed: it says when it has begun."""

import asyncio
import logging
import sys

import msgspec

from kingdom.court import records, streams
from kingdom.court.sentinel import records as remembered
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.sentinel.settings import SentinelSettings
from kingdom.log_output import configure_logs
from tests.contract.backends import BACKENDS


async def main(backend: str, place: str, settings: str) -> None:
    configure_logs(json=True, level=logging.CRITICAL)
    kinds = (*records.KINDS, *remembered.KINDS)
    async with BACKENDS[backend](place).open(streams.TOPOLOGY, kinds) as bus:
        print("begun", flush=True)  # noqa: T201 - the parent process waits for this line
        await Sentinel(bus, msgspec.json.decode(settings, type=SentinelSettings)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
