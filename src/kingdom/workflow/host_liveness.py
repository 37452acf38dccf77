"""Detect hosts that did not renew their lease, by the clock of the observer only."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# Observations further apart than this share of a lease start the measurement again.
_GAP_SHARE = 1 / 3
_CHECKS_PER_LEASE = 6
_PAUSE_SECONDS_MIN = 0.05


class LeaseObservation(NamedTuple):
    """The observed lease of a host. Every renewal changes the version of its record."""

    version: int
    lease_seconds: float


def boot_time() -> float:
    """Return the seconds since the machine started, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LivenessMonitor:
    """Measures how long each host has not changed, as long as observations follow each other closely.

    The clocks of machines need not agree. A gap in the observations, because the store was unavailable or the engine
    was stopped, never makes a host lost.
    """

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._unchanged: dict[str, tuple[int, float]] = {}
        self._observed_at = -math.inf
        self._shortest_lease = math.inf

    def observe(self, observations: Mapping[str, LeaseObservation]) -> set[str]:
        """Record the current observations; return the hosts that did not change for a whole lease."""
        now = self._clock()
        gap = now - self._observed_at
        unchanged: dict[str, tuple[int, float]] = {}
        for host, observation in observations.items():
            version, since = self._unchanged.get(host, (0, now))
            continues = version == observation.version and gap <= observation.lease_seconds * _GAP_SHARE
            unchanged[host] = (observation.version, since if continues else now)
        self._unchanged, self._observed_at = unchanged, now
        self._shortest_lease = min((each.lease_seconds for each in observations.values()), default=math.inf)
        return {host for host, (_, since) in unchanged.items() if now - since >= observations[host].lease_seconds}

    def reset(self) -> None:
        """Start the measurement again after a failed observation, which may have missed a renewal."""
        self._unchanged.clear()

    def pause_seconds(self, seconds_max: float) -> float:
        """Return the pause before the next observation."""
        return max(min(seconds_max, self._shortest_lease / _CHECKS_PER_LEASE), _PAUSE_SECONDS_MIN)
