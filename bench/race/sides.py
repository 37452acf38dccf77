"""The sides of a race: what each runs, in which environment, and with how many events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

from bench.race.figures import (
    BARE,
    BEST,
    COLUMNS,
    COPY,
    DRAIN,
    DRAIN_2,
    HUNDRED,
    KINGDOM,
    LATENCY,
    ONE,
    ORDERED,
    RECORD,
    RECORD_2,
)
from bench.race.player import EVENTS_PER_SECOND

LATENCY_SECONDS = 4
SINGLES_MIN = 200
COPIED_MIN = 1000
BATCHES = {ONE: 1, HUNDRED: 100, COPY: 1000}
WORKERS = {DRAIN: 1, DRAIN_2: 2, RECORD: 1, RECORD_2: 2}
# Columns that start with all events waiting.
FILLED = frozenset(WORKERS)
# The columns of a side that cannot write a record in the transaction that settles its event.
_WITHOUT_RECORDS = tuple(column for column in COLUMNS if column not in (RECORD, RECORD_2))
_WITHOUT_TRANSACTIONS = tuple(column for column in _WITHOUT_RECORDS if column != COPY)
POSTGRES, NATS, NATS_SYNC = "postgres", "nats", "nats-sync"
_EVENTS: LiteralString = "SELECT count(*) FROM kingdom.outbox_event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One contestant: its module, its options, its columns and how it is installed.

    `waiting` counts the events that are not handled yet. `share` scales the number of events of a slow side. Sides with
    the same `store` start from copies of the same databases.
    """

    name: str
    module: str
    store: str
    waiting: LiteralString = _EVENTS
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = COLUMNS
    share: float = 1.0
    packages: tuple[str, ...] = ()
    server: str = POSTGRES

    @property
    def is_peer(self) -> bool:
        """Return whether the side is another product, which may be missing on a machine."""
        return bool(self.packages)

    def events(self, column: str, events: int) -> int:
        """Return how many events the side gets in a column. `events` is the number that a fast side drains."""
        if column == LATENCY:
            return max(min(LATENCY_SECONDS * EVENTS_PER_SECOND, events // 10), 1)
        scaled = round(events * self.share)
        if column == ONE:
            return max(min(events // 10, max(scaled // 10, SINGLES_MIN)), 1)
        if column == COPY:
            return max(scaled, min(events, COPIED_MIN))
        return max(scaled, min(events, 100))


SIDES = {
    side.name: side
    for side in (
        Side(name=BARE, module="bench.race.bare", store="kingdom"),
        Side(name=BEST, module="bench.race.bare", store="kingdom", options={"best": True}),
        Side(name=KINGDOM, module="bench.race.kingdom", store="kingdom"),
        Side(name=ORDERED, module="bench.race.kingdom", store="ordered", options={"ordered": True}),
        Side(
            name="pgmq",
            module="bench.race.peers.pgmq",
            store="pgmq",
            waiting="SELECT count(*) FROM pgmq.q_race",
            packages=("pgmq", "psycopg[binary]"),
        ),
        Side(
            name="pgqueuer",
            module="bench.race.peers.pgqueuer",
            store="pgqueuer",
            waiting="SELECT count(*) FROM pgqueuer",
            columns=_WITHOUT_RECORDS,
            packages=("pgqueuer", "asyncpg", "uvloop"),
        ),
        Side(
            name="procrastinate",
            module="bench.race.peers.procrastinate",
            store="procrastinate",
            waiting="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
            columns=_WITHOUT_RECORDS,
            share=0.05,
            packages=("procrastinate", "psycopg[binary,pool]"),
        ),
        Side(
            name="dbos",
            module="bench.race.peers.dbos",
            store="dbos",
            waiting="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
            columns=_WITHOUT_RECORDS,
            share=0.05,
            packages=("dbos",),
        ),
        Side(
            name=NATS,
            module="bench.race.peers.nats",
            store="nats",
            columns=_WITHOUT_TRANSACTIONS,
            packages=("nats-py",),
            server=NATS,
        ),
        Side(
            name=NATS_SYNC,
            module="bench.race.peers.nats",
            store="nats",
            columns=_WITHOUT_TRANSACTIONS,
            share=0.5,
            packages=("nats-py",),
            server=NATS_SYNC,
        ),
    )
}
