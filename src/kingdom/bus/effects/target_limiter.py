"""The rate limit and the circuit breaker of each target in this process."""

import time
from collections.abc import Callable
from datetime import timedelta

from kingdom.bus.effects.effect import Accepted, Acked, CallResult, Rejected, Target, Throttled, Unknown


class TargetLimiter:
    """Decides whether a target may be called now, from its rate limit and from the results of earlier calls."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._tokens = float(target.burst)
        self._refilled_at = self._last_slot = clock()
        self._failures = 0
        self._open_until = 0.0

    def try_acquire(self) -> tuple[timedelta, str] | None:
        """Return None if one call may be sent now, else how long to wait and why."""
        now = self._clock()
        if now < self._open_until:
            return timedelta(seconds=self._open_until - now), f"circuit of {self._target.name} is open"
        rate = self._target.calls_per_second
        if rate is None:
            return None
        self._tokens = min(float(self._target.burst), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            # Each refused caller gets a later time than the one before, so that they do not all return together.
            self._last_slot = max(self._last_slot, now - self._tokens / rate) + 1 / rate
            return timedelta(seconds=self._last_slot - now), f"rate limit of {self._target.name}"
        self._tokens -= 1
        return None

    def record(self, result: CallResult) -> None:
        """Open the circuit after repeated failures, or if the target asks for a pause.

        An answer that tells whether the target accepted the call resets the count.
        """
        now = self._clock()
        match result:
            case Unknown():
                self._failures += 1
                if self._failures >= self._target.failures_to_open:
                    self._open_until = now + self._target.open_for.total_seconds()
                    # When the circuit closes, calls are allowed again, but a single failure opens it again.
                    self._failures = self._target.failures_to_open - 1
            case Throttled(after) if after is not None:
                self._open_until = max(self._open_until, now + after.total_seconds())
            case Acked() | Accepted() | Rejected():
                self._failures = 0
            case _:
                pass


class TargetLimiters:
    """One limiter per target name."""

    def __init__(self) -> None:
        self._limiters: dict[str, TargetLimiter] = {}

    def get(self, target: Target) -> TargetLimiter:
        """Return the limiter of a target."""
        return self._limiters.setdefault(target.name, TargetLimiter(target))
