"""The answer of a person: the first valid one level the assignment go on that asked, whatever else waits."""

from contextlib import suppress
from datetime import datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Query, Record
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.context import KING
from kingdom.court.king.outcomes import IGNORED, complete_event
from kingdom.court.king.waiting_queue import ANSWER, WaitingEntry, add_entry
from kingdom.court.questions import QUESTIONS, HumanQuestion, QuestionStatus, load_question, save_question
from kingdom.court.records import ASSIGNMENTS, receive_event, save
from kingdom.errors import IllegalTransition, NotFound
from kingdom.workflow.lifecycle import cancel

_SUFFIX = ".human_response"
RULE = "human_response"
# Who answers in the entry of people when the time for it is over.
CLOCK = "clock"


def is_answer(event: ExternalEvent) -> bool:
    """Tell whether an event is what a person answered."""
    return event.type.endswith(_SUFFIX)


async def accept_answer(transaction: Transaction, record: Record, event: ExternalEvent, now: datetime) -> None:
    """Keep a valid answer and let its assignment wait for money only; complete the event of any other as ignored."""
    assignment_id = _payload_text(event, "task_id")
    found = await transaction.get(ASSIGNMENTS.name, assignment_id) if assignment_id else None
    root_id = msgspec.convert(found.doc, Assignment).root_id if found else assignment_id
    known = await load_question(transaction, root_id) if found else None
    if known is None:
        await complete_event(
            transaction, record, event, IGNORED, f"{assignment_id or 'an assignment without a name'} asks nothing"
        )
        return
    question_record, question = known
    if refusal := await _why_refused(transaction, question, event):
        await complete_event(transaction, record, event, IGNORED, refusal)
        return
    await save_question(
        transaction, question.with_answer(_payload_text(event, "user"), _payload_text(event, "text")), question_record
    )
    root = await transaction.get(ASSIGNMENTS.name, root_id)
    entry = WaitingEntry(
        event_id=event.id,
        general=question.general,
        rule=RULE,
        priority=Priority.HIGH,
        since=min(event.created_at, now),
        repo=root.doc.get("repo") if root else None,
        answers=root_id,
        usd=question.usd,
        reason="goes on as soon as there is money",
    )
    entry_id = await add_entry(transaction, entry, ANSWER)
    routes = (Route(general=question.general, rule=RULE, waiting=entry_id),)
    await save(transaction, msgspec.structs.replace(event, routes=routes), record)


async def close_overdue_questions(transaction: Transaction, now: datetime, limit: int) -> int:
    """Go on without people where the time for an answer is over, by the default or not at all; returns how often."""
    due = await transaction.find(Query(kind=QUESTIONS.name, state=QuestionStatus.OPEN, due_by=now, limit=limit))
    over = [
        (record, question) for record in due if (question := msgspec.convert(record.doc, HumanQuestion)).due_at <= now
    ]
    for record, question in over:
        if question.default.strip():
            await receive_event(transaction, _default_answer(question, now), KING)
            continue
        await save_question(transaction, question.as_expired(), record)
        # The General hears of it and ends the assignment.
        with suppress(NotFound, IllegalTransition):
            await cancel(transaction, question.workflow_id, actor=KING, reason="nobody answered in time")
    return len(over)


async def _why_refused(transaction: Transaction, question: HumanQuestion, event: ExternalEvent) -> str:
    """Return why an event is no answer to a question, or nothing where it is one."""
    asked = msgspec.structs.replace(question, people=()) if event.source == CLOCK else question
    if refusal := asked.rejection_reason(
        _payload_text(event, "user"), _payload_text(event, "text"), _payload_text(event, "asked_at")
    ):
        return refusal
    asking = await transaction.get(ASSIGNMENTS.name, question.assignment_id)
    state = asking.state if asking else "gone"
    return (
        ""
        if state == AssignmentStatus.NEEDS_HUMAN
        else f"{question.assignment_id} does not wait for an answer, it is {state}"
    )


def _default_answer(question: HumanQuestion, now: datetime) -> ExternalEvent:
    return ExternalEvent(
        # The same however often the clock looks, so that it is said once.
        id=f"evt-{CLOCK}-response-{question.id}-{int(question.due_at.timestamp())}",
        type=f"{CLOCK}{_SUFFIX}",
        source=CLOCK,
        repo=None,
        payload={
            "task_id": question.assignment_id,
            "text": question.default,
            "user": CLOCK,
            "asked_at": question.asked_at.isoformat(),
        },
        priority=Priority.HIGH,
        created_at=now,
        status=EventStatus.PENDING,
    )


def _payload_text(event: ExternalEvent, name: str) -> str:
    return str(event.payload.get(name) or "")
