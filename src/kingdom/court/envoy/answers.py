"""Answers of people from any source: find their question and check whether they are valid."""

from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import OnUnreadable, Record, RecordQuery, ignore_unreadable, read_document, read_documents
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import HumanResponded
from kingdom.court.documents import Assignment, EventStatus, ExternalEvent, Priority
from kingdom.court.envoy.records import ENVOY, ShownQuestion
from kingdom.court.questions import (
    QUESTIONS,
    HumanQuestion,
    QuestionStatus,
    find_pending_answer,
    load_question,
    save_question,
)
from kingdom.court.records import ASSIGNMENTS, EVENTS, receive_event, save
from kingdom.court.streams import petitions_due
from kingdom.workflow.records import each_record

# Longer texts of people are cut to this many characters.
TEXT_MAX = 20_000
# How many characters of an earlier answer a refusal shows.
_SHOWN_MAX = 80
QUESTION_OVER = "This question is closed."


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAnswer:
    """A person's answer to a question. Answers with the same question, source and time are the same answer.

    `asked_at` is the time of the question that the person saw. It is empty if the answer is to the current question.
    """

    source: str
    question_id: str
    text: str
    person: str
    at: str
    thread_ts: str = ""
    asked_at: str = ""

    @property
    def event_id(self) -> str:
        """Return the id of the event for this answer."""
        return f"evt-{self.source}-response-{self.question_id}-{self.at}"


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The result of a person's message.

    `refusal` says why the message is not a valid answer. `question` is the shown question to close. `is_answer` is
    False if the message is no answer at all.
    """

    is_new: bool
    refusal: str = ""
    question: ShownQuestion | None = None
    is_answer: bool = True


async def find_question(transaction: Transaction, assignment_id: str) -> HumanQuestion | None:
    """Return the latest question about a petition or about the root of an assignment, or None."""
    found = await _find(transaction, assignment_id)
    return found[1] if found else None


async def _find(transaction: Transaction, assignment_id: str) -> tuple[Record, HumanQuestion] | None:
    found = await transaction.get(ASSIGNMENTS.name, assignment_id)
    root_id = read_document(found.doc, Assignment).root_id if found else assignment_id
    return await load_question(transaction, root_id)


async def open_questions(
    transaction: Transaction, on_unreadable: OnUnreadable = ignore_unreadable
) -> list[HumanQuestion]:
    """Return every readable open question, the oldest first."""
    found = [
        record async for record in each_record(transaction, RecordQuery(kind=QUESTIONS.name, state=QuestionStatus.OPEN))
    ]
    return sorted(read_documents(found, HumanQuestion, on_unreadable), key=lambda question: question.asked_at)


async def submit_answer(transaction: Transaction, answer: PersonAnswer, now: datetime) -> SubmissionResult:
    """Pass an answer to the King if it is valid and no other answer waits for him.

    An answer about a petition counts at once. It resumes no run, so the General is notified instead of the King. The
    Envoy later updates the question that people see.
    """
    if await transaction.get(EVENTS.name, answer.event_id):
        return SubmissionResult(is_new=False)
    found = await _find(transaction, answer.question_id)
    if found is None:
        return SubmissionResult(is_new=False, refusal=f"{answer.question_id} has no question")
    # Saving the loaded version makes one of two concurrent answers fail and start over.
    record, question = found
    if refusal := question.rejection_reason(answer.person, answer.text, answer.asked_at):
        return SubmissionResult(is_new=False, refusal=refusal)
    if first := await find_pending_answer(transaction, question):
        payload = read_document(first.doc, ExternalEvent).payload
        by = f"by {payload['user'] or 'a person'}: {shorten(str(payload['text']), _SHOWN_MAX)}"
        refusal = f"the question was already answered {by}; the King processes that answer when its process runs"
        return SubmissionResult(is_new=False, refusal=refusal)
    event = ExternalEvent(
        id=answer.event_id,
        type=f"{answer.source}.human_response",
        source=answer.source,
        repo=None,
        payload={
            "task_id": question.id,
            "text": answer.text,
            "user": answer.person,
            "thread_ts": answer.thread_ts,
            "asked_at": question.asked_at.isoformat(),
        },
        priority=Priority.HIGH,
        created_at=now,
        status=EventStatus.PENDING,
    )
    if question.petition:
        await _answer_petition(transaction, event, question.with_answer(answer.person, answer.text), record)
    elif await receive_event(transaction, event, ENVOY):
        await save_question(transaction, msgspec.structs.replace(question, given=event.id), record)
    else:
        return SubmissionResult(is_new=False)
    await log_event(transaction, HumanResponded(assignment_id=question.thread, thread_ts=answer.thread_ts), ENVOY)
    return SubmissionResult(is_new=True)


async def _answer_petition(
    transaction: Transaction, event: ExternalEvent, question: HumanQuestion, record: Record
) -> None:
    """Store the answer to a petition, and notify its General."""
    await save_question(transaction, question, record)
    decided = msgspec.structs.replace(
        event, status=EventStatus.COMPLETED, outcome="answered", reason=f"it is about the petition {question.petition}"
    )
    await save(transaction, decided)
    await transaction.publish(petitions_due(question.petition, question.assignment_id))


def describe_end(question: HumanQuestion) -> str:
    """Return for people how a question ended."""
    if question.status is QuestionStatus.EXPIRED:
        return "No answer in time."
    by = f" by {question.answered_by}" if question.answered_by else ""
    return f"Answered{by}: {question.answer}" if question.answer else f"Answered{by}."
