"""Answers of people: the first valid answer resumes the assignment that asked, ahead of other waiting work."""

from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, Route
from kingdom.court.king.context import KING
from kingdom.court.king.outcomes import ANSWERED, IGNORED, complete_event
from kingdom.court.king.rounds import answer_followup
from kingdom.court.king.waiting_queue import ANSWER, WaitingEntry, add_entry
from kingdom.court.questions import (
    QUESTIONS,
    HumanQuestion,
    QuestionStatus,
    find_pending_answer,
    load_question,
    save_question,
)
from kingdom.court.records import ASSIGNMENTS, receive_event, save
from kingdom.errors import IllegalTransition, NotFound
from kingdom.workflow.lifecycle import cancel

_SUFFIX = ".human_response"
# The name that an answer shows in place of a routing rule.
RULE = "human_response"
# An answer counts even if the King handles it this long after the deadline.
_ANSWER_KEPT = timedelta(days=7)
# The event source of a default answer, which is given when the time for an answer runs out.
CLOCK = "clock"


def is_answer(event: ExternalEvent) -> bool:
    """Return whether an event is a person's answer."""
    return event.type.endswith(_SUFFIX)


async def accept_answer(transaction: Transaction, record: Record, event: ExternalEvent, now: datetime) -> None:
    """Store a valid answer and queue its assignment to resume. Complete the event of an invalid answer as ignored."""
    assignment_id = _payload_text(event, "task_id")
    found = await transaction.get(ASSIGNMENTS.name, assignment_id) if assignment_id else None
    root_id = msgspec.convert(found.doc, Assignment).root_id if found else assignment_id
    known = await load_question(transaction, root_id) if root_id else None
    if known is None:
        await complete_event(
            transaction, record, event, IGNORED, f"{assignment_id or 'an assignment without an id'} has no question"
        )
        return
    question_record, question = known
    if refusal := await _why_refused(transaction, question, event):
        await complete_event(transaction, record, event, IGNORED, refusal)
        return
    await save_question(
        transaction, question.with_answer(_payload_text(event, "user"), _payload_text(event, "text")), question_record
    )
    if question.followup:
        await answer_followup(transaction, question.followup, event, now)
        await complete_event(transaction, record, event, ANSWERED, f"it is about {question.followup}")
        return
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
        reason="resumes as soon as there is budget",
    )
    entry_id = await add_entry(transaction, entry, ANSWER)
    routes = (Route(general=question.general, rule=RULE, waiting=entry_id),)
    await save(transaction, msgspec.structs.replace(event, routes=routes), record)


async def close_overdue_questions(transaction: Transaction, now: datetime, limit: int) -> int:
    """Give overdue questions their default answer. Expire those without one, and cancel the runs that wait for them.

    A question whose answer the King has not processed yet is left alone for some days, in which the King can be started
    again, or its dead letter redriven. Return the number of overdue questions.
    """
    due = await transaction.find(RecordQuery(kind=QUESTIONS.name, state=QuestionStatus.OPEN, due_by=now, limit=limit))
    over = [
        (record, question) for record in due if (question := msgspec.convert(record.doc, HumanQuestion)).due_at <= now
    ]
    for record, question in over:
        if now < question.due_at + _ANSWER_KEPT and await find_pending_answer(transaction, question):
            continue
        if question.default.strip():
            await receive_event(transaction, _default_answer(question, now), KING)
            continue
        await save_question(transaction, question.as_expired(), record)
        # When the run is cancelled, its General ends the assignment.
        with suppress(NotFound, IllegalTransition):
            await cancel(transaction, question.workflow_id, actor=KING, reason="no answer in time")
    return len(over)


async def _why_refused(transaction: Transaction, question: HumanQuestion, event: ExternalEvent) -> str:
    """Return why an event is not a valid answer, or ""."""
    if question.petition:
        # A person's answer to it is applied when it is submitted, and is no event of the King.
        return f"{question.id} is a petition, which no event approves: `kingdom inbox` shows it"
    asked = msgspec.structs.replace(question, people=()) if event.source == CLOCK else question
    if refusal := asked.rejection_reason(
        _payload_text(event, "user"), _payload_text(event, "text"), _payload_text(event, "asked_at")
    ):
        return refusal
    if question.followup:
        return ""
    asking = await transaction.get(ASSIGNMENTS.name, question.assignment_id)
    state = asking.state if asking else "gone"
    return (
        ""
        if state == AssignmentStatus.NEEDS_HUMAN
        else f"{question.assignment_id} is not waiting for an answer, it is {state}"
    )


def _default_answer(question: HumanQuestion, now: datetime) -> ExternalEvent:
    return ExternalEvent(
        # The id is fixed, so that the answer is given once even if the timer runs more often.
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
