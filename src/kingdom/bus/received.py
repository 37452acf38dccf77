"""What a handler sees of a delivery."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from kingdom.bus.envelope import Envelope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received(Generic[T]):
    """An event in a handler's hands; `fence` grows with every delivery, pass it to targets that honour it."""

    payload: T
    envelope: Envelope
    attempt: int
    fence: int
