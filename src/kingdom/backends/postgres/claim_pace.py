"""Decide where the next claim of a stream starts in the index, and how many keys it takes. This module does no I/O.

A claim of an ordered stream takes some events from each of several keys. The first event of a key is its head.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

# A transaction may commit a little later than the due time that it wrote. So after a claim that found all due events,
# the next claim looks this far back.
_BEHIND = timedelta(seconds=2)
# A claim without a lower bound runs once a second, or after 20 times its own duration if that is longer. A blocked
# event loop makes every claim seem slow, so the time between two such claims is limited.
_UNBOUNDED_SECONDS_MIN = 1.0
_UNBOUNDED_DURATION_FACTOR = 20
_UNBOUNDED_SECONDS_MAX = 10.0
# An ordered claim takes at least an eighth of its limit as heads. The number of heads shrinks in steps of an eighth.
_HEADS_SHARE = 8
# The lower bound of a claim that looks at all events.
EVERYTHING = datetime(1, 1, 2, tzinfo=UTC)


class ClaimPace:
    """Keeps the cost of claims constant while dead row versions accumulate at the front of the index."""

    def __init__(self) -> None:
        self._latest_due: datetime | None = None
        self._was_full = False
        self._next_unbounded = 0.0
        self._heads: int | None = None

    def lower_bound(self, now: float) -> datetime:
        """Return the earliest due time to look at. `now` is a monotonic time in seconds."""
        if self._latest_due is None or now >= self._next_unbounded:
            return EVERYTHING
        return self._latest_due if self._was_full else self._latest_due - _BEHIND

    def heads(self, limit: int) -> int:
        """Return the number of keys that an ordered claim takes: few if each has many events, else more."""
        if self._heads is None:
            self._heads = max(limit // _HEADS_SHARE, 1)
        return min(self._heads, limit)

    def record_claim(self, due: Sequence[datetime], *, full: bool, bound: datetime, took: float, now: float) -> None:
        """Record a claim: the due times of its events, whether more events may be due (`full`), and its duration."""
        if bound == EVERYTHING:
            wait = max(_UNBOUNDED_SECONDS_MIN, _UNBOUNDED_DURATION_FACTOR * took)
            self._next_unbounded = now + min(wait, _UNBOUNDED_SECONDS_MAX)
        if due:
            self._latest_due = max(due)
        self._was_full = full

    def record_keys(self, *, keys: int, events: int, limit: int) -> None:
        """Set the number of heads for the next claim, depending on how many keys and events this claim has taken."""
        heads, fewest = self.heads(limit), max(limit // _HEADS_SHARE, 1)
        if events >= limit:
            self._heads = max(fewest, heads - max(heads // _HEADS_SHARE, 1))
        elif keys >= heads:
            self._heads = min(limit, heads * 2)
