"""Effects: calls to outside systems. A call is never repeated without proof that it did not happen."""

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
    """How a target treats late or repeated calls, such as the call of a stalled worker that wakes up."""

    NOTHING = "nothing"
    """The target executes every call. If it is not known whether a call happened, a person must find out."""
    IDENTIFIER = "identifier"
    """The target executes each identifier once, so the same identifier may be sent again."""
    FENCE = "fence"
    """The target refuses a fence that is lower than the highest fence in an earlier `call` or `reconcile`."""
    TIME = "time"
    """The target shows every call within `settles_after`. A call that is still absent then may be sent again.

    This is safe if the first sender was killed, but not if it was stopped for longer than `settles_after` and wakes up.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An outside system: its idempotency, and the rate limit and circuit breaker that each process applies to it.

    The circuit breaker refuses calls for `open_for` after `failures_to_open` failures in a row. For Idempotency.TIME,
    `settles_after` is the time after which every executed call is visible.
    """

    name: str
    idempotency: Idempotency = Idempotency.NOTHING
    calls_per_second: float | None = None
    burst: int = 1
    failures_to_open: int = 5
    open_for: timedelta = timedelta(seconds=60)
    settles_after: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `identifier` is a unique id that the bus chose. `request` is the result of `Effect.request`.

    `fence` is the token of the delivery, which grows with every delivery.
    """

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
    """It is not known whether the call happened. `reconcile` must find out."""

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
    """Return a result in a form that every store accepts. If a store refused it, the result would be lost."""
    return replace(result, **{each.name: to_storable(getattr(result, each.name)) for each in fields(result)})


class Effect(ABC, Generic[T]):
    """One kind of outside call. `call` sends it once; `reconcile` finds out whether an unfinished call happened."""

    target: Target

    @abstractmethod
    def key(self, event: Event[T]) -> str:
        """Return the key of the effect. Events with the same key share one effect, which happens at most once."""

    @abstractmethod
    def request(self, event: Event[T]) -> Mapping[str, Any]:
        """Return everything that the call needs, as JSON. Attempts share it until the target rejects the call."""

    @abstractmethod
    async def call(self, attempt: Attempt) -> CallResult:
        """Send the call. A Permanent error means Rejected, any other exception means Unknown."""

    @abstractmethod
    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Ask the target whether an attempt took effect. Pass `attempt.fence` to a target that enforces fences."""

    async def conclude(self, event: Event[T], result: Acked | Rejected, transaction: Transaction) -> Outcome:
        """Write and publish the consequences of a result, in the transaction that records the result."""
        del event, transaction
        return Done() if isinstance(result, Acked) else Dead(result.reason, "rejected")
