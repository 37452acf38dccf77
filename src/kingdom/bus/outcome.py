"""The outcome of a delivery."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """The event is handled and will not be delivered again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The event failed. Deliver it again after a wait and count the attempt.

    If `after` is None, the retry policy of the stream decides how long to wait.
    """

    after: timedelta | None = None
    code: str = "retry"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """The event cannot be handled yet. Deliver it again at `until`, or after the wait `after` if `until` is None.

    The attempt does not count. `kingdom bus why` shows the reason.
    """

    until: datetime | None
    reason: str
    after: timedelta = timedelta()

    @classmethod
    def by(cls, wait: timedelta, reason: str) -> "Defer":
        """Defer by a wait that starts when the event is settled."""
        return cls(None, reason, wait)


@dataclass(frozen=True, slots=True)
class Dead:
    """The event cannot be handled in its present form. It is kept until a person decides."""

    message: str
    code: str = "dead"


@dataclass(frozen=True, slots=True)
class Release:
    """The event did not run. Return it to its stream without counting the attempt. No handler returns this."""


@dataclass(frozen=True, slots=True)
class MoveToStore:
    """The event did not run. Move it from its transport to the store, and deliver it from there."""


Outcome = Done | Retry | Defer | Dead
AnyOutcome = Outcome | Release | MoveToStore
