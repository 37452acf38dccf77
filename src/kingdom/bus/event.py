"""An event as its handler receives it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from kingdom.bus.envelope import Envelope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One received event. `fence` grows with every delivery; pass it to targets that enforce fences."""

    payload: T
    envelope: Envelope
    attempt: int
    fence: int
