"""The answer of a person: the first valid one lets the assignment go on that asked, whatever else waits."""

from contextlib import suppress
from datetime import datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.asks import ASKS, Ask, AskStatus, load_ask, save_ask
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.outcomes import IGNORED, end_event
from kingdom.court.king.terms import KING
from kingdom.court.king.waiting import ANSWER, WaitingPlace, put_place
from kingdom.court.records import ASSIGNMENTS, receive, save
from kingdom.errors import IllegalTransition, NotFound
from kingdom.workflow.lifecycle import cancel

_SUFFIX = ".human_response"
RULE = "human_response"
# Who answers in the place of people when the time for it is over.
CLOCK = "clock"


def is_answer(event: ExternalEvent) -> bool:
    """Tell whether an event is what a person answered."""
    return event.type.endswith(_SUFFIX)


async def take_answer(transaction: Transaction, record: Record, event: ExternalEvent, now: datetime) -> None:
    """Keep a valid answer and let its assignment wait for money only; complete the event of any other as ignored."""
    task_id = _word(event, "task_id")
    found = await transaction.get(ASSIGNMENTS.name, task_id) if task_id else None
    root_id = msgspec.convert(found.doc, Assignment).root_id if found else task_id
    known = await load_ask(transaction, root_id) if found else None
    if known is None:
        await end_event(
            transaction, record, event, IGNORED, f"{task_id or 'an assignment without a name'} asks nothing"
        )
        return
    ask_record, ask = known
    if refusal := await _refusal(transaction, ask, event):
        await end_event(transaction, record, event, IGNORED, refusal)
        return
    await save_ask(transaction, ask.answered(_word(event, "user"), _word(event, "text")), ask_record)
    root = await transaction.get(ASSIGNMENTS.name, root_id)
    place = WaitingPlace(
        event_id=event.id,
        general=ask.general,
        rule=RULE,
        priority=Priority.HIGH,
        since=min(event.created_at, now),
        repo=root.doc.get("repo") if root else None,
        answers=root_id,
        usd=ask.usd,
        reason="goes on as soon as there is money",
    )
    place_id = await put_place(transaction, place, ANSWER)
    routes = (Route(general=ask.general, rule=RULE, waiting=place_id),)
    await save(transaction, msgspec.structs.replace(event, routes=routes), record)


async def answer_for_nobody(transaction: Transaction, now: datetime, limit: int) -> int:
    """Go on without people where the time for an answer is over, by the default or not at all; returns how often."""
    due = await transaction.find(RecordQuery(kind=ASKS.name, state=AskStatus.OPEN, due_by=now, limit=limit))
    over = [(record, ask) for record in due if (ask := msgspec.convert(record.doc, Ask)).due_at <= now]
    for record, ask in over:
        if ask.default.strip():
            await receive(transaction, _said_by_clock(ask, now), KING)
            continue
        await save_ask(transaction, ask.expired(), record)
        # The General hears of it and ends the assignment.
        with suppress(NotFound, IllegalTransition):
            await cancel(transaction, ask.workflow_id, actor=KING, reason="nobody answered in time")
    return len(over)


async def _refusal(transaction: Transaction, ask: Ask, event: ExternalEvent) -> str:
    """Return why an event is no answer to a question, or nothing where it is one."""
    asked = msgspec.structs.replace(ask, people=()) if event.source == CLOCK else ask
    if refusal := asked.refuses(_word(event, "user"), _word(event, "text"), _word(event, "asked_at")):
        return refusal
    asking = await transaction.get(ASSIGNMENTS.name, ask.task_id)
    state = asking.state if asking else "gone"
    return "" if state == AssignmentStatus.NEEDS_HUMAN else f"{ask.task_id} does not wait for an answer, it is {state}"


def _said_by_clock(ask: Ask, now: datetime) -> ExternalEvent:
    return ExternalEvent(
        # The same however often the clock looks, so that it is said once.
        id=f"evt-{CLOCK}-response-{ask.id}-{int(ask.due_at.timestamp())}",
        type=f"{CLOCK}{_SUFFIX}",
        source=CLOCK,
        repo=None,
        payload={
            "task_id": ask.task_id,
            "text": ask.default,
            "user": CLOCK,
            "asked_at": ask.asked_at.isoformat(),
        },
        priority=Priority.HIGH,
        created_at=now,
        status=EventStatus.PENDING,
    )


def _word(event: ExternalEvent, name: str) -> str:
    return str(event.payload.get(name) or "")
