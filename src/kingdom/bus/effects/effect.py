"""Effects: calls to outside systems, never repeated without proof that they did not happen."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

from kingdom.bus.event import Event
from kingdom.bus.outcome import Dead, Done, Outcome
from kingdom.bus.port import Transaction
from kingdom.bus.record import to_storable

T = TypeVar("T")


class Idempotency(Enum):
    """What a target does about a late or repeated call, such as one of a stalled worker that wakes up."""

    NOTHING = "nothing"
    """The target excludes no late call. A call without proof that it happened goes to a person."""
    IDENTIFIER = "identifier"
    """The target executes each identifier once, so the same identifier may be sent again."""
    FENCE = "fence"
    """The target refuses a fence lower than one it has seen, also in `reconcile`, so a new attempt may follow."""
    TIME = "time"
    """The target shows every call within `settles_after`. A call absent after that may be attempted again.

    This is safe against a killed sender, but not against one that was stopped for longer and wakes up.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An outside system, its idempotency, and the rate limit and circuit breaker of this process for it."""

    name: str
    idempotency: Idempotency = Idempotency.NOTHING
    calls_per_second: float | None = None
    burst: int = 1
    failures_to_open: int = 5
    open_for: timedelta = timedelta(seconds=60)
    settles_after: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `identifier` is our unique id; `request` is the snapshot taken when the effect was first seen."""

    number: int
    identifier: str
    request: Mapping[str, Any]
    fence: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The target executed the call."""

    response: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The target accepted the call. A later event closes the effect."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The target refused the call. Sending it again cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """The target did not execute the call and asks to be called later."""

    after: timedelta | None
    reason: str = "throttled"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The call may have happened or not. `reconcile` must find out."""

    reason: str


CallResult = Acked | Accepted | Rejected | Throttled | Unknown


@dataclass(frozen=True, slots=True)
class Present:
    """Proof that the call took effect."""

    response: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """Proof that the call has not taken effect yet."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """No proof either way."""

    reason: str


ReconcileResult = Present | Absent | Unclear
_Result = TypeVar("_Result", CallResult, ReconcileResult, Acked | Rejected)


def make_storable(result: _Result) -> _Result:
    """Return a result in a form that every store accepts. Refusing it would lose the result."""
    return replace(result, **{each.name: to_storable(getattr(result, each.name)) for each in fields(result)})


class Effect(ABC, Generic[T]):
    """One kind of outside call. `call` sends it once; `reconcile` finds out whether an unfinished call happened."""

    target: Target

    @abstractmethod
    def key(self, event: Event[T]) -> str:
        """Return the key of what must happen at most once. Two events with the same key are one effect."""

    @abstractmethod
    def request(self, event: Event[T]) -> Mapping[str, Any]:
        """Return everything that the call needs, as JSON. Later attempts use this snapshot again."""

    @abstractmethod
    async def call(self, attempt: Attempt) -> CallResult:
        """Send the call. A Permanent error means Rejected, any other exception means Unknown."""

    @abstractmethod
    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Ask the target whether an attempt took effect. Pass `attempt.fence` to a target that enforces it."""

    async def conclude(self, event: Event[T], result: Acked | Rejected, transaction: Transaction) -> Outcome:
        """Write and publish the consequences, in the transaction that records the result."""
        del event, transaction
        return Done() if isinstance(result, Acked) else Dead(result.reason, "rejected")
