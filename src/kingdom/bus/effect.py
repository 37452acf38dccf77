"""Effects: calls to the outside world that are never repeated without proof that they did not happen."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

from kingdom.bus.outcome import Dead, Done, Outcome
from kingdom.bus.port import Transaction
from kingdom.bus.received import Received
from kingdom.bus.record import storable

T = TypeVar("T")


class Honours(Enum):
    """What a target does for us about a sender that was stopped, declared dead, and wakes up to send."""

    NOTHING = "nothing"
    """A late sender cannot be excluded: what is not proven to have happened goes to a person."""
    IDENTIFIER = "identifier"
    """It does a call with the same identifier only once, so the same identifier may be sent again."""
    FENCE = "fence"
    """It refuses a fence lower than one it has seen, also in `reconcile`, so a new attempt may follow."""
    TIME = "time"
    """It shows all it ever took within `settles_after`: what is absent then was not sent, and a new attempt may follow.

    A sender that was killed cannot contradict this; one that was stopped, declared dead and wakes up can.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A system outside, and how gently it wants to be treated by this process."""

    name: str
    honours: Honours = Honours.NOTHING
    calls_per_second: float | None = None
    burst: int = 1
    failures_to_open: int = 5
    open_for: timedelta = timedelta(seconds=60)
    settles_after: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: `identifier` is ours and unique, `request` the snapshot taken when the effect was first seen."""

    number: int
    identifier: str
    request: Mapping[str, Any]
    fence: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The target did it."""

    response: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The target took it on; an event will close the effect later."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The target understood and refused; asking again cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """The target did not do it and wants to be asked later."""

    after: timedelta | None
    reason: str = "throttled"


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have happened or not; only `reconcile` may tell."""

    reason: str


Answer = Acked | Accepted | Rejected | Throttled | Unknown


@dataclass(frozen=True, slots=True)
class Happened:
    """Proof that the call took effect."""

    response: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """Proof that the call has not taken effect so far."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """No proof either way."""

    reason: str


Finding = Happened | Absent | Unclear
Said = TypeVar("Said", Answer, Finding, Acked | Rejected)


def in_storable_words(said: Said) -> Said:
    """Return what a target said as every store can keep it: who cannot keep an answer loses it."""
    return replace(said, **{each.name: storable(getattr(said, each.name)) for each in fields(said)})


class Effect(ABC, Generic[T]):
    """One kind of outside call. `call` sends it once; `reconcile` finds out what became of a call nobody saw end."""

    target: Target

    @abstractmethod
    def key(self, event: Received[T]) -> str:
        """Return what must happen at most once; two events with one key are one effect."""

    @abstractmethod
    def request(self, event: Received[T]) -> Mapping[str, Any]:
        """Return everything the call needs, as JSON: a snapshot that later attempts use again."""

    @abstractmethod
    async def call(self, attempt: Attempt) -> Answer:
        """Send it; an exception means Unknown, except Permanent, which means Rejected."""

    @abstractmethod
    async def reconcile(self, attempt: Attempt) -> Finding:
        """Ask the target what became of an attempt; pass `attempt.fence` on where it is honoured."""

    async def conclude(self, event: Received[T], answer: Acked | Rejected, transaction: Transaction) -> Outcome:
        """Write and publish what follows, in the transaction that records the answer."""
        del event, transaction
        return Done() if isinstance(answer, Acked) else Dead(answer.reason, "rejected")
