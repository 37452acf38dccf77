"""Dead letters, and the results of commands on them."""

from uuid import UUID

import msgspec

from kingdom.bus.operations import DeadLetter
from kingdom.views.camel import camel_case_struct


class DeadLetterKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The key of a dead letter: its event, and the stream in which the event is dead."""

    event_id: UUID
    stream: str


class DiscardResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The discarded dead letters."""

    discarded: list[DeadLetterKey]


class RedriveResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a redrive. `events` are the redriven events; `stopped` is true if too many of them died again."""

    dry_run: bool = False
    matching: int
    redriven: int = 0
    died_again: int = 0
    stopped: bool = False
    events: tuple[DeadLetterKey, ...] = ()


# `dead list` leaves out these fields.
CONTENT_FIELDS = ("envelope", "history")
ListedDeadLetter = camel_case_struct(DeadLetter, "ListedDeadLetter", without=CONTENT_FIELDS)
DeadLetterDetails = camel_case_struct(DeadLetter)
