"""When the Sentinel polls each followed pull request next, and what the last poll found."""

from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.court.records import CURRENT, ENDED

# The due time of such a record is the time of the next poll. Its id is that of the followup.
PULL_POLLS = RecordKind(
    name="look",
    directories={CURRENT: "state/sentinel/looks", ENDED: "state/sentinel/looks/ended"},
    final=frozenset({ENDED}),
    retention=timedelta(days=1),
    indexes=("repo",),
)


class PullPollState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a followed pull request at its last poll. `seen` are the ids of its reviews.

    `etags` are from the replies, by the name of the request. `suites` and `statuses` are the numbers of check suites
    and statuses of the commit `head`. `open_suites` and `open_statuses` are the numbers of unfinished ones. `problem`
    says why a part of the pull request could not be read.
    """

    head: str = ""
    etags: dict[str, str] = {}
    seen: tuple[int, ...] = ()
    suites: int = 0
    open_suites: int = 0
    statuses: int = 0
    open_statuses: int = 0
    problem: str = ""


async def put_poll(
    transaction: Transaction, followup: str, known: Record | None, state: PullPollState, due_at: datetime | None
) -> None:
    """Store what a poll has found, and when the next poll is due. `due_at` is None if no other poll follows."""
    await transaction.put(
        Record(
            kind=PULL_POLLS.name,
            id=followup,
            version=known.version if known else 0,
            state=CURRENT if due_at else ENDED,
            indexed={"repo": followup.partition("#")[0]},
            due_at=due_at,
            doc=msgspec.to_builtins(state),
        )
    )
