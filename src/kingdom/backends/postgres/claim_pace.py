"""Decide where the next claim of a stream starts in the index, and how many keys it takes. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

# Transactions may commit a little after the time that they wrote. A claim that is not full looks this far back.
_BEHIND = timedelta(seconds=2)
_UNBOUNDED_EVERY = 1.0
_UNBOUNDED_SHARE = 20
# A blocked event loop makes any claim seem slow. Events behind the watermark must not wait for minutes then.
_UNBOUNDED_AT_LEAST_EVERY = 10.0
_HEADS_SHARE = 8
EVERYTHING = datetime(1, 1, 2, tzinfo=UTC)


class ClaimPace:
    """Keeps the cost of claims constant while dead row versions accumulate at the front of the index."""

    def __init__(self) -> None:
        self._position: datetime | None = None
        self._exact = False
        self._next_unbounded = 0.0
        self._heads: int | None = None

    def lower_bound(self, now: float) -> datetime:
        """Return the earliest due time to look at. `now` is a monotonic time in seconds."""
        if self._position is None or now >= self._next_unbounded:
            return EVERYTHING
        return self._position if self._exact else self._position - _BEHIND

    def heads(self, limit: int) -> int:
        """Return how many keys an ordered claim takes: few if their runs are long, more if they are short."""
        if self._heads is None:
            self._heads = max(limit // _HEADS_SHARE, 1)
        return min(self._heads, limit)

    def record_claim(self, due: Sequence[datetime], *, full: bool, bound: datetime, took: float, now: float) -> None:
        """Record when the events of a claim were due, whether more may be due, and how long it took."""
        if bound == EVERYTHING:
            wait = max(_UNBOUNDED_EVERY, _UNBOUNDED_SHARE * took)
            self._next_unbounded = now + min(wait, _UNBOUNDED_AT_LEAST_EVERY)
        if due:
            self._position = max(due)
        self._exact = full

    def record_runs(self, *, runs: int, events: int, limit: int) -> None:
        """Adjust the number of heads of the next claim to the runs of this one."""
        heads, fewest = self.heads(limit), max(limit // _HEADS_SHARE, 1)
        if events >= limit:
            self._heads = max(fewest, heads - max(heads // _HEADS_SHARE, 1))
        elif runs >= heads:
            self._heads = min(limit, heads * 2)
