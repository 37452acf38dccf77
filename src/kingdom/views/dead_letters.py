"""Dead letters, and the results of commands on them."""

from uuid import UUID

import msgspec

from kingdom.bus.operations import DeadLetter
from kingdom.views.camel import camel


class DeadLetterKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The key of a dead letter: its event, and the stream that it is dead in."""

    event_id: UUID
    stream: str


class DiscardResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The discarded dead letters."""

    discarded: list[DeadLetterKey]


class RedriveResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a redrive: `events` lists the redriven ones; `stopped` is set if too many died again."""

    dry_run: bool = False
    matching: int
    redriven: int = 0
    died_again: int = 0
    stopped: bool = False
    events: tuple[DeadLetterKey, ...] = ()


# A list leaves out the fields with the content.
CONTENT_FIELDS = ("envelope", "history")
ListedDeadLetter = camel(DeadLetter, "ListedDeadLetter", without=CONTENT_FIELDS)
DeadLetterDetails = camel(DeadLetter)
