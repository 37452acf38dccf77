"""Every error that Kingdom raises on purpose.

    KingdomError
    ├── Transient            try again later: the Worker retries
    │   ├── Conflict         somebody changed the same data first: rerun at once
    │   ├── DeadlineExceeded a handler took too long and was cut off
    │   └── Unavailable      the store cannot be reached: the Worker waits for it
    ├── Permanent            trying again cannot help: the Worker makes it DEAD
    │   ├── MalformedEvent   an envelope or a payload does not fit its type
    │   └── IllegalTransition a thing is in a state from which this is not allowed
    ├── LeaseLost            another worker owns the delivery now: nothing was changed
    ├── ProgramFailed        a program outside (git, an agent, a check) failed or took too long
    ├── Unreadable           what is stored does not fit this version
    ├── NotFound             no such event, stream or record
    │   └── Ambiguous        a shortened id can mean several things
    └── Misconfigured        a declaration or a setting is wrong

What happened, why, and what to do next belong into the message.
"""

from collections.abc import Iterable
from datetime import timedelta


class KingdomError(Exception):
    """The root of the tree; carries a short machine-readable code for stores and metrics."""

    code = "error"


class Transient(KingdomError):
    """Raised when the same call may succeed later."""

    code = "transient"

    def __init__(self, message: str, *, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class Conflict(Transient):
    """Raised when another transaction changed the same data first; rerun from the start."""

    code = "conflict"


class Unavailable(Transient):
    """Raised by a backend when its store cannot be reached; it counts no attempt."""

    code = "unavailable"


class DeadlineExceeded(Transient):
    """Raised when a handler took longer than it may."""

    code = "deadline"


class Permanent(KingdomError):
    """Raised when no later attempt can succeed without a change by a person."""

    code = "permanent"


class MalformedEvent(Permanent):
    """Raised when an envelope or a payload does not fit its declared type."""

    code = "malformed"


class IllegalTransition(Permanent):
    """Raised when a thing is asked for something that its state does not allow; `allowed` tells what it does."""

    code = "illegal_transition"

    def __init__(self, thing: str, state: str, asked: str, allowed: Iterable[str]) -> None:
        self.state = state
        self.allowed = tuple(sorted(allowed))
        super().__init__(
            f"{thing} is {state}: {asked}; allowed now: {', '.join(self.allowed) or 'nothing, it is final'}"
        )


class LeaseLost(KingdomError):
    """Raised when a settlement comes too late; `positions` names the deliveries that were lost."""

    code = "lease_lost"

    def __init__(self, positions: Iterable[int]) -> None:
        self.positions = frozenset(positions)
        super().__init__(
            f"lease lost for {len(self.positions)} delivery(ies) {sorted(self.positions)[:5]}: another worker "
            "may own them now; nothing of this transaction was kept"
        )


class ProgramFailed(KingdomError):
    """Raised when a program that was started, such as git or an agent, did not do what it should."""

    code = "program_failed"


class Unreadable(KingdomError):
    """Raised when a stored document is not what this version expects: another one wrote it, or somebody spoilt it."""

    code = "unreadable"


class NotFound(KingdomError):
    """Raised when what was asked for does not exist."""

    code = "not_found"


class Ambiguous(NotFound):
    """Raised when what was asked for can be more than one thing."""

    code = "ambiguous"


class Misconfigured(KingdomError):
    """Raised when a declaration or a setting contradicts itself or is incomplete."""

    code = "misconfigured"
