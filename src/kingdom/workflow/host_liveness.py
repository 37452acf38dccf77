"""Which hosts gave no sign of life for a whole lease, told by one clock only: that of whoever looks."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# Looks must be closer together than this part of a lease, or what was seen before counts for nothing.
_GAP_SHARE = 1 / 3
_LOOKS_PER_LEASE = 6
_PAUSE_SECONDS_MIN = 0.05


class LeaseObservation(NamedTuple):
    """What is seen of a host: every renewal changes the version of its record."""

    version: int
    lease_seconds: float


def boot_time() -> float:
    """Return the seconds since the machine started, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LivenessMonitor:
    """Remembers since when each host has not changed, as long as the looks follow each other closely.

    So the clocks of machines need not agree, and hosts that nobody could hear, since the store was away or the engine
    stood still, are not lost.
    """

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._unchanged: dict[str, tuple[int, float]] = {}
        self._looked_at = -math.inf
        self._shortest = math.inf

    def look(self, signs: Mapping[str, LeaseObservation]) -> set[str]:
        """Take down what was seen just now; return the hosts that did not change for a whole lease."""
        now = self._clock()
        gap = now - self._looked_at
        unchanged: dict[str, tuple[int, float]] = {}
        for host, sign in signs.items():
            version, since = self._unchanged.get(host, (0, now))
            goes_on = version == sign.version and gap <= sign.lease_seconds * _GAP_SHARE
            unchanged[host] = (sign.version, since if goes_on else now)
        self._unchanged, self._looked_at = unchanged, now
        self._shortest = min((sign.lease_seconds for sign in signs.values()), default=math.inf)
        return {host for host, (_, since) in unchanged.items() if now - since >= signs[host].lease_seconds}

    def forget(self) -> None:
        """Start anew after a look that failed: a renewal may have been missed."""
        self._unchanged.clear()

    def pause(self, seconds_max: float) -> float:
        """Return how many seconds later to look again."""
        return max(min(seconds_max, self._shortest / _LOOKS_PER_LEASE), _PAUSE_SECONDS_MIN)
