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
_WITHOUT_RECORDS = tuple(column for column in COLUMNS if column not in (RECORD, RECORD_2))
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

    @property
    def is_peer(self) -> bool:
        """Return whether the side is another product, which may be missing on a machine."""
        return bool(self.packages)

    def events(self, column: str, events: int) -> int:
        """Return how many events the side gets in a column, where a fast side drains `events`."""
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
    )
}
