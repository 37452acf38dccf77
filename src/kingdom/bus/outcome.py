"""What became of a delivery."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """It is handled; it will not be delivered again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed; deliver it again after a wait (None: the stream's policy decides). Counts an attempt."""

    after: timedelta | None = None
    code: str = "retry"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """It cannot be handled yet; deliver it again at `until`, or after a wait by the clock of the store.

    Counts no attempt; `why` shows the reason.
    """

    until: datetime | None
    reason: str
    after: timedelta = timedelta()

    @classmethod
    def by(cls, wait: timedelta, reason: str) -> "Defer":
        """Defer by a wait from the moment it is settled."""
        return cls(None, reason, wait)


@dataclass(frozen=True, slots=True)
class Dead:
    """It can never be handled as it is; keep it for a person."""

    message: str
    code: str = "dead"


@dataclass(frozen=True, slots=True)
class Release:
    """It was not run; give it and its attempt back. Only the Worker says so."""


Outcome = Done | Retry | Defer | Dead
Settlement = Outcome | Release
