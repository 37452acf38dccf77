"""Detect hosts that did not renew their lease. Only the clock of the observer counts."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# If two observations are further apart than this share of a lease, the measurement starts again.
_GAP_SHARE = 1 / 3
_CHECKS_PER_LEASE = 6
_PAUSE_SECONDS_MIN = 0.05


class LeaseObservation(NamedTuple):
    """The observed lease of a host. Every renewal changes `renewals`."""

    renewals: int
    lease_seconds: float


def boot_time() -> float:
    """Return the seconds since the machine started, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LivenessMonitor:
    """Measures for how long each host has not renewed its lease.

    The measurement starts again after a gap in the observations, for example when the store was unavailable or the
    engine was stopped. The clocks of the machines need not agree.
    """

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        # For each host its renewals, and the time of the last change.
        self._unchanged: dict[str, tuple[int, float]] = {}
        self._observed_at = -math.inf
        self._shortest_lease = math.inf

    def observe(self, observations: Mapping[str, LeaseObservation]) -> set[str]:
        """Record the current observations; return the hosts that did not renew for a whole lease."""
        now = self._clock()
        gap = now - self._observed_at
        unchanged: dict[str, tuple[int, float]] = {}
        for host, observation in observations.items():
            renewals, since = self._unchanged.get(host, (0, now))
            continues = renewals == observation.renewals and gap <= observation.lease_seconds * _GAP_SHARE
            unchanged[host] = (observation.renewals, since if continues else now)
        self._unchanged, self._observed_at = unchanged, now
        self._shortest_lease = min((each.lease_seconds for each in observations.values()), default=math.inf)
        return {host for host, (_, since) in unchanged.items() if now - since >= observations[host].lease_seconds}

    def reset(self) -> None:
        """Start the measurement again after an observation failed, because it may have missed a renewal."""
        self._unchanged.clear()

    def pause_seconds(self, seconds_max: float) -> float:
        """Return the pause before the next observation."""
        return max(min(seconds_max, self._shortest_lease / _CHECKS_PER_LEASE), _PAUSE_SECONDS_MIN)
