"""Messages of other systems, and how they become events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kingdom.bus.envelope import Envelope


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """A message that another system has written to a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    at: datetime


@dataclass(frozen=True, slots=True)
class ForeignTopic:
    """A topic that another system writes. `read` returns the event of a message, or raises if it is malformed.

    The bus derives the id of the event from the topic, partition and offset of the message. A message that is read
    again thus becomes the same event.
    """

    name: str
    read: Callable[[ForeignMessage], Envelope]
