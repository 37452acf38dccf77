"""An envelope claimed under a lease."""

from datetime import datetime

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.bus.outcome import Dead

# An event ends DEAD after this many lost leases that held only this event. Its first lost lease does not count: it may
# have held several events, and any of them may be the cause.
LOST_ALONE_LIMIT = 3


class Delivery(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One envelope that a worker has claimed. The worker owns it while `token` is the newest token of its `position`.

    `same_key` lists the positions of the same key that were claimed together. The worker handles them in this order.
    `crash_count` counts the first lost lease of the event, and each later one that held only this event. An event
    `in_transport` is not in the store: a reaction can settle it, but an effect needs it in the store.
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
    same_key: tuple[int, ...] = ()
    cancelled: bool = False
    in_transport: bool = False

    @property
    def suspect(self) -> bool:
        """Return whether a worker died or stalled while it held this event. A suspect event must run alone."""
        return self.crash_count > 0

    @property
    def lost_alone(self) -> int:
        """Return how many leases that held only this event were lost after its first lost lease."""
        return max(self.crash_count - 1, 0)

    @property
    def ordering_key(self) -> tuple[str, str] | None:
        """Return the stream and key within which the event is ordered, or None if it is not ordered."""
        key = self.envelope.partition_key
        return (self.stream, key) if self.ordered and key is not None else None

    def outcome_without_running(self) -> Dead | None:
        """Return Dead if the event must not run any more, else None."""
        if not self.cancelled and self.crash_count <= LOST_ALONE_LIMIT and self.attempt <= self.max_attempts:
            return None
        if self.cancelled:
            return Dead("cancelled by an operator", "cancelled")
        if self.lost_alone >= LOST_ALONE_LIMIT:
            return Dead(
                f"its worker died or stalled {self.lost_alone} times while handling only this event", "quarantined"
            )
        return Dead(
            f"claimed {self.attempt} times, but only {self.max_attempts} attempts are allowed", "attempts_exhausted"
        )
