"""Decide from which streams a worker claims next. This module does no I/O."""

import math
import random
from collections.abc import Iterable


class ClaimSchedule:
    """The time of the next claim from each stream: the polling period after the last claim, or at once after a hint.

    A hint says that a stream may have due events. It may be lost, and a delayed event has none, so every stream is
    polled. Times are on the monotonic clock.
    """

    def __init__(self, streams: Iterable[str], poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._next = dict.fromkeys(streams, 0.0)

    def is_due(self, stream: str, now: float) -> bool:
        """Return whether to claim from a stream."""
        return self._next[stream] <= now

    def hint(self, stream: str) -> None:
        """Claim from a stream in the next round, because it may have due events."""
        self._next[stream] = 0.0

    def postpone(self, stream: str, now: float) -> None:
        """Claim from a stream only after the polling period, unless there is a hint before."""
        self._next[stream] = now + self._poll_seconds * jitter()

    def seconds_until_due(self, streams: Iterable[str], now: float) -> float:
        """Return the time until the next claim from any of them: zero if one is due, infinite without streams."""
        return max(min((self._next[stream] for stream in streams), default=math.inf) - now, 0.0)


def jitter() -> float:
    """Return a random factor for a wait, so that many workers do not act at the same moment."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing
