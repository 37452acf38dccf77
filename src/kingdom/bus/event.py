"""An event as its handler receives it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from kingdom.bus.envelope import Envelope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One received event. `fence` grows with every delivery, so that a target can refuse calls of an older delivery."""

    payload: T
    envelope: Envelope
    attempt: int
    fence: int
