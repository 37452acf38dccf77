"""An envelope claimed under a lease."""

from datetime import datetime

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.bus.outcome import Dead

# A lease lost together with others makes each of them a suspect; only leases lost alone count against one.
LOST_ALONE_LIMIT = 3


class Delivery(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One envelope in the hands of one worker, as long as `token` is the newest for its `position`.

    `run` lists the positions of one key that were claimed together, in order; the worker handles them so.
    """

    stream: str
    position: int
    token: int
    envelope: Envelope
    attempt: int
    max_attempts: int
    crash_count: int
    ordered: bool
    published_at: datetime
    run: tuple[int, ...] = ()
    cancelled: bool = False

    @property
    def suspect(self) -> bool:
        """Tell whether a worker died or stalled while it held this event: it must run alone."""
        return self.crash_count > 0

    @property
    def lost_alone(self) -> int:
        """Return how often a lease on this event alone was lost."""
        return max(self.crash_count - 1, 0)

    @property
    def line(self) -> tuple[str, str] | None:
        """Return what the event must stay in order with, or None where it stands for itself."""
        key = self.envelope.partition_key
        return (self.stream, key) if self.ordered and key is not None else None

    def quarantine(self) -> Dead | None:
        """Return the verdict on an event that must not run any more, else None."""
        if self.cancelled:
            return Dead("cancelled by an operator", "cancelled")
        if self.lost_alone >= LOST_ALONE_LIMIT:
            return Dead(f"its worker died or stalled {self.lost_alone} times while handling only it", "quarantined")
        if self.attempt > self.max_attempts:
            return Dead(f"claimed {self.attempt} times without an answer", "attempts_exhausted")
        return None
