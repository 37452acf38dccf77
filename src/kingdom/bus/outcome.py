"""The outcome of a delivery."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """The event is handled and will not be delivered again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The event failed. Deliver it again after a wait; without one, the stream's policy decides. Counts an attempt."""

    after: timedelta | None = None
    code: str = "retry"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """The event cannot be handled yet. Deliver it again at `until`, or after a wait by the clock of the store.

    Counts no attempt. `kingdom bus why` shows the reason.
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
    """The event can never be handled as it is. Keep it for a person."""

    message: str
    code: str = "dead"


@dataclass(frozen=True, slots=True)
class Release:
    """The event did not run. Return it without counting the attempt. Only the Worker uses this."""


Outcome = Done | Retry | Defer | Dead
AnyOutcome = Outcome | Release
