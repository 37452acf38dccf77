"""Every error that Kingdom raises on purpose.

    KingdomError
    ├── Transient            try again later: the Worker retries
    │   ├── Conflict         another transaction changed the same data first: rerun immediately
    │   ├── DeadlineExceeded a handler took too long and was cancelled
    │   └── Unavailable      the store cannot be reached: the Worker waits for it
    ├── Permanent            trying again cannot help: the Worker ends the event as DEAD
    │   ├── MalformedEvent   an envelope or a payload does not fit its type
    │   ├── MalformedRequest a request over HTTP does not fit its type
    │   └── IllegalTransition the current state does not allow the request
    ├── LeaseLost            the lease has ended, so another worker may own the delivery: nothing was changed
    ├── ProgramFailed        an external program (git, an agent, a check) or an access to a file failed
    │   └── ProgramTimedOut  a program was killed at its time limit
    ├── Unreadable           a stored document does not fit this version
    ├── NotFound             no such event, stream or record
    │   └── Ambiguous        a shortened id matches several ids
    ├── Refused              a request over the web is not permitted
    │   ├── NotSignedIn      the request has no valid session or token
    │   └── NotAllowed       the right for this request is missing
    └── Misconfigured        a declaration or a setting is wrong

A message says what happened, why, and what to do next.
"""

from collections.abc import Iterable
from datetime import timedelta


class KingdomError(Exception):
    """The base of all errors. `code` is a short machine-readable name for stores and metrics."""

    code = "error"


class Transient(KingdomError):
    """Raised when the same call may succeed later. `after` is the time to wait, if it is known."""

    code = "transient"

    def __init__(self, message: str, *, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Conflict(Transient):
    """Raised when another transaction changed the same data first. The caller runs its whole transaction again."""

    code = "conflict"


class Unavailable(Transient):
    """Raised by a backend when its store cannot be reached. The failure does not count as an attempt."""

    code = "unavailable"


class DeadlineExceeded(Transient):
    """Raised when a handler exceeds its deadline."""

    code = "deadline"


class Permanent(KingdomError):
    """Raised when a later attempt can succeed only after a person changes something."""

    code = "permanent"


class MalformedEvent(Permanent):
    """Raised when an envelope or a payload does not fit its declared type."""

    code = "malformed"


class MalformedRequest(Permanent):
    """Raised when a request over HTTP does not fit its declared type."""

    code = "malformed_request"


class IllegalTransition(Permanent):
    """Raised when a state does not allow a request. `allowed` lists the allowed requests."""

    code = "illegal_transition"

    def __init__(self, thing: str, state: str, asked: str, allowed: Iterable[str]) -> None:
        self.state = state
        self.allowed = tuple(sorted(allowed))
        super().__init__(
            f"{thing} is {state}: {asked}; allowed now: {', '.join(self.allowed) or 'nothing, it is final'}"
        )


class LeaseLost(KingdomError):
    """Raised when a lease ended before the result of its deliveries was stored. `positions` are these deliveries."""

    code = "lease_lost"

    def __init__(self, positions: Iterable[int]) -> None:
        self.positions = frozenset(positions)
        super().__init__(
            f"lease lost for {len(self.positions)} delivery(ies) {sorted(self.positions)[:5]}: another worker "
            "may own them now; this transaction was rolled back"
        )


class ProgramFailed(KingdomError):
    """Raised when an external program, such as git or an agent, or an access to a file fails."""

    code = "program_failed"


class ProgramTimedOut(ProgramFailed):
    """Raised when an external program was killed because it took longer than its time limit."""


class Unreadable(KingdomError):
    """Raised when this version cannot read a stored document: another version wrote it, or it was changed by hand."""

    code = "unreadable"


class NotFound(KingdomError):
    """Raised when a requested object does not exist."""

    code = "not_found"


class Ambiguous(NotFound):
    """Raised when a request matches more than one object."""

    code = "ambiguous"


class Refused(KingdomError):
    """Raised when a request over the web is not permitted."""

    code = "refused"


class NotSignedIn(Refused):
    """Raised when a request has no valid session or token."""

    code = "not_signed_in"


class NotAllowed(Refused):
    """Raised when the sender of a request lacks the right for it."""

    code = "not_allowed"


class Misconfigured(KingdomError):
    """Raised when a declaration or a setting contradicts itself or is incomplete."""

    code = "misconfigured"


def describe_error(error: BaseException) -> str:
    """Return the text of an error, or the name of its class if it has no text."""
    return str(error) or type(error).__name__
