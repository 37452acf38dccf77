"""When the Sentinel reads each followed pull request next, and what it found the last time."""

from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.court.records import CURRENT, ENDED

# The due time of a look is when the followed pull request is read next. Its id is that of the followup.
LOOKS = RecordKind(
    name="look",
    directories={CURRENT: "state/sentinel/looks", ENDED: "state/sentinel/looks/ended"},
    final=frozenset({ENDED}),
    retention=timedelta(days=1),
    indexes=("repo",),
)


class PullLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the last look at a followed pull request found. `etags` are of its requests, and `seen` its reviews.

    `suites` and `statuses` count what reports about the commit `head`, and the other two what has not ended. `problem`
    is why a part of the pull request could not be read.
    """

    head: str = ""
    etags: dict[str, str] = {}
    seen: tuple[int, ...] = ()
    suites: int = 0
    open_suites: int = 0
    statuses: int = 0
    open_statuses: int = 0
    problem: str = ""


async def put_look(
    transaction: Transaction, followup: str, known: Record | None, look: PullLook, due_at: datetime | None
) -> None:
    """Store what a look has found, and when the next one is due, or None if no other follows."""
    await transaction.put(
        Record(
            kind=LOOKS.name,
            id=followup,
            version=known.version if known else 0,
            state=CURRENT if due_at else ENDED,
            indexed={"repo": followup.partition("#")[0]},
            due_at=due_at,
            doc=msgspec.to_builtins(look),
        )
    )
