"""What other rules would have decided: stored events are routed again, and nothing is changed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from kingdom.bus.log import LogCursor
from kingdom.bus.operations import Operations
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery
from kingdom.chronicle.events import EventDetected
from kingdom.court.documents import ExternalEvent
from kingdom.court.king.answers import is_answer
from kingdom.court.king.assigning import SCHEDULE
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.king.routing import Considered, route
from kingdom.court.package import Package
from kingdom.court.records import EVENTS
from kingdom.workflow.records import each

_PAGE = 1000


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """An event about which would be decided otherwise, and why."""

    event_id: str
    type: str
    repo: str | None
    change: Literal["other General", "newly routed", "newly unrouted"]
    before: tuple[str, ...]
    after: tuple[str, ...]
    considered: tuple[Considered, ...]


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What would be otherwise; of the `forgotten` only the log still knows, which does not keep what was in them."""

    since: datetime
    differences: tuple[Difference, ...]
    unchanged: int
    forgotten: int


def compare(event: ExternalEvent, packages: Sequence[Package]) -> Difference | None:
    """Return how the decision about an event would differ, or nothing where it would not."""
    decision = route(event, packages)
    before, after = tuple(sorted(each.general for each in event.routes)), tuple(sorted(decision.generals))
    if before == after:
        return None
    return Difference(
        event_id=event.id,
        type=event.type,
        repo=event.repo,
        change="newly routed" if not before else "newly unrouted" if not after else "other General",
        before=before,
        after=after,
        considered=decision.considered,
    )


async def simulate(
    transaction: Transaction, operations: Operations, packages: Sequence[Package], since: datetime
) -> Simulation:
    """Route every event since a moment again; those that no rule decides about are left out."""
    differences: list[Difference] = []
    unchanged, known = 0, set()
    async for record in each(transaction, RecordQuery(kind=EVENTS.name)):
        event = msgspec.convert(record.doc, ExternalEvent)
        known.add(event.id)
        if event.created_at < since or not _was_decided(event):
            continue
        difference = compare(event, packages)
        if difference:
            differences.append(difference)
        else:
            unchanged += 1
    forgotten = await _detected(operations, since) - known
    return Simulation(since=since, differences=tuple(differences), unchanged=unchanged, forgotten=len(forgotten))


def _was_decided(event: ExternalEvent) -> bool:
    if event.source == SCHEDULE or is_answer(event):
        return False
    return bool(event.routes) or event.outcome == UNROUTED


async def _detected(operations: Operations, since: datetime) -> set[str]:
    """Return the ids of the events that the log tells of since a moment."""
    found: set[str] = set()
    cursor = LogCursor()
    while page := await operations.read_log(cursor, _PAGE):
        found |= {
            logged.entry.aggregate_id
            for logged in page
            if logged.entry.type == EventDetected.type and logged.entry.at >= since
        }
        cursor = page[-1].cursor
    return found
