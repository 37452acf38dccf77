"""A court whose roles ignore wake-ups and poll every three seconds, which the bound on latency must detect."""

import asyncio
import sys
from collections.abc import Collection
from datetime import timedelta

from bench.court.court_processes import CourtProcesses
from kingdom.backends.hints import Hints
from kingdom.bus.worker import Worker
from kingdom.cli.main import main as play

POLLS = "polls"
# The roles on the path of an event.
_ROLES = ("king", "general", "soldiers")
_POLL = timedelta(seconds=3)


def ignore_wakeups(court: CourtProcesses) -> None:
    """Make the roles of a court ignore wake-ups."""
    for role in _ROLES:
        court.break_role(role, POLLS, module=__name__)


async def _sleep(_hints: Hints, _streams: Collection[str], _at_most: timedelta) -> None:
    await asyncio.sleep(_POLL.total_seconds())


if __name__ == "__main__":
    sys.argv.remove(POLLS)
    Hints.wait = _sleep  # type: ignore[assignment, method-assign] # a variant patches the class
    # Without hints, a worker looks at its streams at this interval.
    Worker.__init__.__kwdefaults__["poll"] = _POLL  # type: ignore[index] # it has keyword arguments
    play()
