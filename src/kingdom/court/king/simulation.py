"""Simulate routing: show how other rules would route the stored events. Nothing is changed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from kingdom.bus.log import LogCursor
from kingdom.bus.operations import Operations
from kingdom.bus.port import Transaction
from kingdom.bus.record import OnUnreadable, RecordQuery, ignore_unreadable, read_documents
from kingdom.chronicle.events import EventDetected
from kingdom.court.documents import ExternalEvent
from kingdom.court.king.answers import is_answer
from kingdom.court.king.assignments import SCHEDULE
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.king.round_queue import RULE as FOLLOW_RULE
from kingdom.court.king.routing import ConsideredRule, route_event
from kingdom.court.package import Package
from kingdom.court.records import EVENTS
from kingdom.workflow.records import each_record

_PAGE = 1000


class RoutingDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An event that would be routed differently, and why."""

    event_id: str
    type: str
    repo: str | None
    change: Literal["other General", "newly routed", "newly unrouted"]
    before: tuple[str, ...]
    after: tuple[str, ...]
    considered: tuple[ConsideredRule, ...]


class RoutingSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """What would change. `forgotten` counts events that are only in the log, which has no payloads to route by.

    `forgotten` is null if the log was not read, and `more` is true if there are events that were not compared.
    """

    since: datetime
    differences: tuple[RoutingDifference, ...]
    unchanged: int
    forgotten: int | None
    more: bool = False


def compare_routing(event: ExternalEvent, packages: Sequence[Package]) -> RoutingDifference | None:
    """Return how the routing of an event would change, or None."""
    decision = route_event(event, packages)
    before, after = tuple(sorted(each.general for each in event.routes)), tuple(sorted(decision.generals))
    if before == after:
        return None
    return RoutingDifference(
        event_id=event.id,
        type=event.type,
        repo=event.repo,
        change="newly routed" if not before else "newly unrouted" if not after else "other General",
        before=before,
        after=after,
        considered=decision.considered,
    )


async def simulate_routing(
    transaction: Transaction,
    operations: Operations,
    packages: Sequence[Package],
    since: datetime,
    on_unreadable: OnUnreadable = ignore_unreadable,
) -> RoutingSimulation:
    """Compare the routing of every event since a moment, and count those that are only in the log."""
    known: set[str] = set()
    compared = await compare_stored_events(transaction, packages, since, known=known, on_unreadable=on_unreadable)
    forgotten = await _logged_events(operations, since) - known
    return msgspec.structs.replace(compared, forgotten=len(forgotten))


async def compare_stored_events(
    transaction: Transaction,
    packages: Sequence[Package],
    since: datetime,
    *,
    events_max: int | None = None,
    known: set[str] | None = None,
    on_unreadable: OnUnreadable = ignore_unreadable,
) -> RoutingSimulation:
    """Compare the routing of stored events since a moment, and add the ids of all events to `known`.

    Answers, events of schedules and events of followed pull requests are skipped: no rule routes them.
    """
    differences: list[RoutingDifference] = []
    unchanged, seen = 0, known if known is not None else set()
    async for record in each_record(transaction, RecordQuery(kind=EVENTS.name)):
        if events_max is not None and len(seen) >= events_max:
            return _compared(since, differences, unchanged, more=True)
        seen.add(record.id)
        event = next(read_documents([record], ExternalEvent, on_unreadable), None)
        if event is None or event.created_at < since or not _was_routed_by_rules(event):
            continue
        difference = compare_routing(event, packages)
        if difference:
            differences.append(difference)
        else:
            unchanged += 1
    return _compared(since, differences, unchanged, more=False)


def _compared(
    since: datetime, differences: Sequence[RoutingDifference], unchanged: int, *, more: bool
) -> RoutingSimulation:
    return RoutingSimulation(
        since=since, differences=tuple(differences), unchanged=unchanged, forgotten=None, more=more
    )


def _was_routed_by_rules(event: ExternalEvent) -> bool:
    if event.source == SCHEDULE or is_answer(event) or any(each.rule == FOLLOW_RULE for each in event.routes):
        return False
    return bool(event.routes) or event.outcome == UNROUTED


async def _logged_events(operations: Operations, since: datetime) -> set[str]:
    """Return the ids of all events in the log since a moment."""
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
