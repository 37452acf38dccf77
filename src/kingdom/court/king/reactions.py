"""ONE table: what the King does about each thing that he hears of."""

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
from kingdom.court.king.answers import is_answer, take_answer
from kingdom.court.king.assigning import SCHEDULE
from kingdom.court.king.outcomes import SUPERSEDED, UNROUTED, discard, settle_event
from kingdom.court.king.resting import rest
from kingdom.court.king.routing import Choice, Decision, route, why_nobody
from kingdom.court.king.terms import Terms
from kingdom.court.king.waiting import Superseded, enter
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.streams import (
    ASSIGNMENT_RESTED,
    EVENT_STREAM,
    EXTERNAL_EVENT_RECEIVED,
    RESULT_STREAM,
    AssignmentRested,
    ExternalEventReceived,
    event_received,
)
from kingdom.errors import IllegalTransition

# The streams that a worker for the King listens to.
STREAMS = (EVENT_STREAM.name, RESULT_STREAM.name)


async def event_arrived(terms: Terms, received: Event[ExternalEventReceived], transaction: Transaction) -> None:
    """Decide who gets an event and let it wait for them, then admit whom there is room for."""
    now = terms.clock()
    record = await transaction.get(EVENTS.name, received.payload.event_id)
    if record is None or record.state != EventStatus.PENDING:
        return
    event = msgspec.convert(record.doc, ExternalEvent)
    if is_answer(event) and not event.routes:
        await take_answer(transaction, record, event, now)
    elif not any(each.waiting or each.task_id for each in event.routes):
        await _let_wait(transaction, record, event, now, terms)
    await admit(transaction, now, terms)


async def assignment_rested(terms: Terms, received: Event[AssignmentRested], transaction: Transaction) -> None:
    """Take back what an assignment held, and admit whom there is room for now."""
    now = terms.clock()
    await rest(transaction, received.payload.task_id, now, terms)
    await admit(transaction, now, terms)


class Row(NamedTuple):
    """What is heard, the kind of record that it is about, and what follows."""

    notice: EventType[Any]
    reads: str
    reaction: Callable[[Terms, Event[Any], Transaction], Awaitable[None]]


REACTIONS = (
    Row(EXTERNAL_EVENT_RECEIVED, EVENTS.name, event_arrived),
    Row(ASSIGNMENT_RESTED, ASSIGNMENTS.name, assignment_rested),
)


def register(dispatcher: Dispatcher, terms: Terms) -> None:
    """Let a worker do what the King does."""
    for row in REACTIONS:
        dispatcher.reaction(row.notice, reads=row.reads)(partial(row.reaction, terms))


async def reroute(transaction: Transaction, event_id: str) -> ExternalEvent:
    """Let the King decide anew about an event that no General wanted."""
    record, event = await load(transaction, ExternalEvent, event_id)
    if event.status is not EventStatus.COMPLETED or event.outcome != UNROUTED:
        state = f"{event.status} {event.outcome}".strip()
        raise IllegalTransition(f"event {event_id}", state, "only an unrouted event can be routed anew", ())
    again = event.as_new()
    await save(transaction, again, record)
    await transaction.publish(event_received(event_id))
    return again


def decide(event: ExternalEvent, packages: Sequence[Package]) -> Decision:
    """Return who gets an event; a schedule has decided that already."""
    if event.source != SCHEDULE or not event.routes:
        return route(event, packages)
    return Decision(
        choices=tuple(Choice(general=each.general, rule=each.rule, priority=event.priority) for each in event.routes)
    )


async def _let_wait(
    transaction: Transaction, record: Record, event: ExternalEvent, now: datetime, terms: Terms
) -> None:
    packages = terms.packages()
    decision = decide(event, packages)
    if not decision.choices:
        await discard(transaction, record, event, UNROUTED, why_nobody(event, packages))
        return
    routes: list[Route] = []
    newer = ""
    for choice in decision.choices:
        package = terms.package(choice.general)
        repo = event.repo or (package.general.default_repo if package else None)
        given, older, overtaken_by = await enter(transaction, event, choice, repo, now, first=not routes)
        routes.append(given)
        newer = overtaken_by or newer
        if older:
            await _supersede(transaction, older, event.id)
    kept = msgspec.structs.replace(event, key=decision.choices[0].key, routes=tuple(routes))
    if any(each.waiting for each in routes):
        await save(transaction, kept, record)
    else:
        await discard(transaction, record, kept, SUPERSEDED, f"superseded by {newer}")


async def _supersede(transaction: Transaction, older: Superseded, newer: str) -> None:
    """Let an event go that waited and has lost its place to a newer one."""
    record = await transaction.get(EVENTS.name, older.place.event_id)
    if record is None:
        return
    event = msgspec.convert(record.doc, ExternalEvent)
    routes = tuple(
        msgspec.structs.replace(each, waiting="") if each.waiting == older.record.id else each for each in event.routes
    )
    left = msgspec.structs.replace(event, routes=routes)
    if any(each.waiting or each.task_id for each in routes):
        await settle_event(transaction, record, left)
    else:
        await discard(transaction, record, left, SUPERSEDED, f"superseded by {newer}")
