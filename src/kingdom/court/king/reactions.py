"""The table of the King's reactions to notices."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.payload import EventType
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.documents import EventStatus, ExternalEvent, Route
from kingdom.court.king.admission import admit
from kingdom.court.king.answers import accept_answer, is_answer
from kingdom.court.king.assignments import SCHEDULE
from kingdom.court.king.context import KingContext
from kingdom.court.king.outcomes import SUPERSEDED, UNROUTED, discard_event, update_event_status
from kingdom.court.king.release import release_assignment
from kingdom.court.king.round_queue import take_followup_event
from kingdom.court.king.routing import RouteChoice, RoutingDecision, route_event, why_unrouted
from kingdom.court.king.waiting_queue import SupersededEntry, enqueue
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.streams import (
    EVENT_STREAM,
    EXTERNAL_EVENT_RECEIVED,
    RESULT_STREAM,
    SLOT_RELEASE_DUE,
    ExternalEventReceived,
    SlotReleaseDue,
    event_received,
)
from kingdom.errors import IllegalTransition

# The streams of the King's worker.
STREAMS = (EVENT_STREAM.name, RESULT_STREAM.name)


async def on_event_received(
    context: KingContext, received: Event[ExternalEventReceived], transaction: Transaction
) -> None:
    """Route an event and queue it for its Generals. Then admit waiting entries."""
    now = context.clock()
    record = await transaction.get(EVENTS.name, received.payload.event_id)
    if record is None or record.state != EventStatus.PENDING:
        return
    event = msgspec.convert(record.doc, ExternalEvent)
    if is_answer(event) and not event.routes:
        await accept_answer(transaction, record, event, now)
    elif not any(each.waiting or each.assignment_id for each in event.routes):
        taken = await take_followup_event(transaction, record, event, now, context)
        if not taken:
            await _queue_event(transaction, record, event, now, context)
    await admit(transaction, now, context)


async def on_slot_release_due(context: KingContext, received: Event[SlotReleaseDue], transaction: Transaction) -> None:
    """Release the quotas of an assignment. Then admit waiting entries."""
    now = context.clock()
    await release_assignment(transaction, received.payload.assignment_id, now, context)
    await admit(transaction, now, context)


class KingReaction(NamedTuple):
    """A notice, the kind of the record whose id the notice contains, and the reaction."""

    notice: EventType[Any]
    reads: str
    reaction: Callable[[KingContext, Event[Any], Transaction], Awaitable[None]]


REACTIONS = (
    KingReaction(EXTERNAL_EVENT_RECEIVED, EVENTS.name, on_event_received),
    KingReaction(SLOT_RELEASE_DUE, ASSIGNMENTS.name, on_slot_release_due),
)


def register(dispatcher: Dispatcher, context: KingContext) -> None:
    """Register the King's reactions."""
    for row in REACTIONS:
        dispatcher.reaction(row.notice, reads=row.reads)(partial(row.reaction, context))


async def reroute_event(transaction: Transaction, event_id: str) -> ExternalEvent:
    """Route an unrouted event again."""
    record, event = await load(transaction, ExternalEvent, event_id)
    if event.status is not EventStatus.COMPLETED or event.outcome != UNROUTED:
        state = f"{event.status} {event.outcome}".strip()
        raise IllegalTransition(f"event {event_id}", state, "only an unrouted event can be routed again", ())
    again = event.as_new()
    await save(transaction, again, record)
    await transaction.publish(event_received(event_id))
    return again


def decide_routes(event: ExternalEvent, packages: Sequence[Package]) -> RoutingDecision:
    """Return the routing decision for an event. The event of a schedule already has its General."""
    if event.source != SCHEDULE or not event.routes:
        return route_event(event, packages)
    return RoutingDecision(
        choices=tuple(
            RouteChoice(general=each.general, rule=each.rule, priority=event.priority) for each in event.routes
        )
    )


async def _queue_event(
    transaction: Transaction, record: Record, event: ExternalEvent, now: datetime, context: KingContext
) -> None:
    packages = context.packages()
    decision = decide_routes(event, packages)
    if not decision.choices:
        await discard_event(transaction, record, event, UNROUTED, why_unrouted(event, packages))
        return
    routes: list[Route] = []
    newer = ""
    for choice in decision.choices:
        package = context.package(choice.general)
        repo = event.repo or (package.general.default_repo if package else None)
        queued = await enqueue(transaction, event, choice, repo, now, first=not routes)
        routes.append(queued.route)
        newer = queued.overtaken_by or newer
        if queued.superseded:
            await _drop_superseded(transaction, queued.superseded, event.id)
    kept = msgspec.structs.replace(event, key=decision.choices[0].key, routes=tuple(routes))
    if any(each.waiting for each in routes):
        await save(transaction, kept, record)
    else:
        await discard_event(transaction, record, kept, SUPERSEDED, f"superseded by {newer}")


async def _drop_superseded(transaction: Transaction, older: SupersededEntry, newer: str) -> None:
    """Remove the route of a waiting event, because a newer event replaces it."""
    record = await transaction.get(EVENTS.name, older.entry.event_id)
    if record is None:
        return
    event = msgspec.convert(record.doc, ExternalEvent)
    routes = tuple(
        msgspec.structs.replace(each, waiting="") if each.waiting == older.record.id else each for each in event.routes
    )
    left = msgspec.structs.replace(event, routes=routes)
    if any(each.waiting or each.assignment_id for each in routes):
        await update_event_status(transaction, record, left)
    else:
        await discard_event(transaction, record, left, SUPERSEDED, f"superseded by {newer}")
