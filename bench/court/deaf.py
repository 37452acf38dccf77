"""A court whose roles hear no wake-up and look for work once a second: the bound on latency must find it out."""

import asyncio
import sys
from collections.abc import Collection
from datetime import timedelta

from bench.court.house import House
from kingdom.backends.hints import Hints
from kingdom.cli.main import main as play

DEAF = "deaf"
# Who hands an event from one to the other.
_ROLES = ("king", "general", "soldiers")


def deafen(house: House) -> None:
    """Let the roles of a court be deaf from now on."""
    for role in _ROLES:
        house.break_role(role, DEAF, module=__name__)


async def _sleep(_hints: Hints, _streams: Collection[str], _at_most: timedelta) -> None:
    await asyncio.sleep(1)


if __name__ == "__main__":
    sys.argv.remove(DEAF)
    Hints.wait = _sleep  # type: ignore[assignment, method-assign]
    play()
