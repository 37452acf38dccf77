"""Where the next claim of a stream starts, and how many keys it takes. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

# Transactions may commit a little later than the time they wrote; a short claim looks this far back.
_BEHIND = timedelta(seconds=2)
_UNBOUNDED_EVERY = 1.0
_UNBOUNDED_SHARE = 20
# A blocked event loop makes any claim look slow, and must not keep what lies behind the watermark waiting for minutes.
_UNBOUNDED_AT_LEAST_EVERY = 10.0
_HEADS_SHARE = 8
EVERYTHING = datetime(1, 1, 2, tzinfo=UTC)


class ClaimPace:
    """Keeps claims of one stream flat while dead row versions pile up at the front of the index."""

    def __init__(self) -> None:
        self._position: datetime | None = None
        self._exact = False
        self._next_unbounded = 0.0
        self._heads: int | None = None

    def lower_bound(self, now: float) -> datetime:
        """Return the earliest due time worth looking at; `now` is a monotonic time in seconds."""
        if self._position is None or now >= self._next_unbounded:
            return EVERYTHING
        return self._position if self._exact else self._position - _BEHIND

    def heads(self, limit: int) -> int:
        """Return how many keys an ordered claim takes: few while their runs are long, more where they are short."""
        if self._heads is None:
            self._heads = max(limit // _HEADS_SHARE, 1)
        return min(self._heads, limit)

    def claimed(self, due: Sequence[datetime], *, full: bool, bound: datetime, took: float, now: float) -> None:
        """Learn from a claim: when its events were due, whether there may be more, and how long it took."""
        if bound == EVERYTHING:
            wait = max(_UNBOUNDED_EVERY, _UNBOUNDED_SHARE * took)
            self._next_unbounded = now + min(wait, _UNBOUNDED_AT_LEAST_EVERY)
        if due:
            self._position = max(due)
        self._exact = full

    def learn_runs(self, *, runs: int, events: int, limit: int) -> None:
        """Learn from the runs of an ordered claim how many heads the next one should take."""
        heads, fewest = self.heads(limit), max(limit // _HEADS_SHARE, 1)
        if events >= limit:
            self._heads = max(fewest, heads - max(heads // _HEADS_SHARE, 1))
        elif runs >= heads:
            self._heads = min(limit, heads * 2)
