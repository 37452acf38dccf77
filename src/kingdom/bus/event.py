"""An event as its handler receives it."""

from typing import Generic, TypeVar

import msgspec

from kingdom.bus.envelope import Envelope

T = TypeVar("T")


class Event(msgspec.Struct, Generic[T], frozen=True):
    """One received event. `fence` grows with every delivery, so that a target can refuse calls of an older delivery."""

    payload: T
    envelope: Envelope
    attempt: int
    fence: int
