"""A court whose roles ignore wake-ups and poll once per second: the bound on latency must detect it."""

import asyncio
import sys
from collections.abc import Collection
from datetime import timedelta

from bench.court.house import House
from kingdom.bus.hints import Hints
from kingdom.cli.main import main as play

DEAF = "deaf"
# The roles on the path of an event.
_ROLES = ("king", "general", "soldiers")


def deafen(house: House) -> None:
    """Make the roles of a court ignore wake-ups."""
    for role in _ROLES:
        house.break_role(role, DEAF, module=__name__)


async def _sleep(_hints: Hints, _streams: Collection[str], _at_most: timedelta) -> None:
    await asyncio.sleep(1)


if __name__ == "__main__":
    sys.argv.remove(DEAF)
    Hints.wait = _sleep  # type: ignore[assignment, method-assign]
    play()
