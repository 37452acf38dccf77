"""The retry policy: how long to wait before the next attempt, and when to give up."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with jitter, and the number of attempts before an event ends DEAD."""

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=300)
    jitter: float = 0.2
    max_attempts: int = 10

    def delay(self, attempt: int, *, chance: float | None = None) -> timedelta:
        """Return the wait after an attempt; the first attempt is 1. `chance` replaces the random number in [0, 1)."""
        # The exponent has a limit, so that a large attempt number causes no overflow.
        growth = self.factor ** min(max(attempt, 1) - 1, 64)
        plain = min(self.base.total_seconds() * growth, self.cap.total_seconds())
        spread = random.random() if chance is None else chance  # noqa: S311 - jitter is no secret
        return timedelta(seconds=plain * (1 + self.jitter * (2 * spread - 1)))
