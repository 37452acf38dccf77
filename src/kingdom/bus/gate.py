"""Per-target rate limit and circuit breaker, in this process."""

import time
from collections.abc import Callable
from datetime import timedelta

from kingdom.bus.effect import Accepted, Acked, Answer, Rejected, Target, Throttled, Unknown


class Gate:
    """Tells whether a target may be called now; learns from every answer."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._tokens = float(target.burst)
        self._refilled_at = self._last_place = clock()
        self._failures = 0
        self._open_until = 0.0

    def try_enter(self) -> tuple[timedelta, str] | None:
        """Take a place, or return how long to wait and why."""
        now = self._clock()
        if now < self._open_until:
            return timedelta(seconds=self._open_until - now), f"circuit of {self._target.name} is open"
        rate = self._target.calls_per_second
        if rate is None:
            return None
        self._tokens = min(float(self._target.burst), self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            # Each one refused gets a later place, so that they do not all come back at once.
            self._last_place = max(self._last_place, now - self._tokens / rate) + 1 / rate
            return timedelta(seconds=self._last_place - now), f"rate limit of {self._target.name}"
        self._tokens -= 1
        return None

    def learn(self, answer: Answer) -> None:
        """Open after repeated failures, or for as long as the target asks; one success closes."""
        now = self._clock()
        match answer:
            case Unknown():
                self._failures += 1
                if self._failures >= self._target.failures_to_open:
                    self._open_until = now + self._target.open_for.total_seconds()
                    # Half open afterwards: the next failure opens again at once.
                    self._failures = self._target.failures_to_open - 1
            case Throttled(after) if after is not None:
                self._open_until = max(self._open_until, now + after.total_seconds())
            case Acked() | Accepted() | Rejected():
                self._failures = 0
            case _:
                pass


class Gates:
    """One gate per target name."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def of(self, target: Target) -> Gate:
        """Return the gate of a target."""
        return self._gates.setdefault(target.name, Gate(target))
