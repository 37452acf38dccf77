"""Questions to people. A root assignment or petition has at most one open question. The first valid answer counts."""

from datetime import date, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.court.documents import EventStatus, MessageType, Urgency
from kingdom.court.records import EVENTS, queue_message

# People are reminded once after this time without an answer.
REMINDED_AFTER = timedelta(hours=24)
# People are warned once, more prominently, after this time without an answer.
WARNED_AFTER = timedelta(days=7)
# How long a closed question is stored.
_KEPT = timedelta(days=7)
# The choices of a yes-or-no question.
APPROVE, REJECT = "approve", "reject"
# The choices of a question about a followup.
CONTINUE, STOP = "continue", "stop"
# The workflow id of a question that no run waits for. Its expiry cancels nothing.
WITHOUT_RUN = "none"


class QuestionStatus(StrEnum):
    """Whether a question still waits for an answer."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


class HumanQuestion(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"assignment_id": "task_id", "text": "question"},
):
    """One question. Its id is that of the root assignment. `assignment_id` is the assignment that asks.

    A question about a `followup` asks whether another round of work may begin; its id is that of the last round.
    A question about a `petition` has the petition's id, so its answers cannot be confused with others. `people` are
    those who may answer; empty means everyone. `default` is the answer if the time runs out.
    """

    id: str
    assignment_id: str
    general: str
    workflow_id: str
    text: str
    asked_at: datetime
    due_at: datetime
    petition: str = ""
    followup: str = ""
    status: QuestionStatus = msgspec.field(default_factory=lambda: QuestionStatus.OPEN)
    choices: tuple[str, ...] = ()
    # Whether the answer must be one of the choices.
    exact: bool = False
    people: tuple[str, ...] = ()
    # How much of the daily budget is reserved when the run continues, if known.
    usd: float | None = None
    default: str = ""
    reminded_at: datetime | None = None
    warned_at: datetime | None = None
    # The id of the event with the latest answer.
    given: str = ""
    answered_by: str = ""
    answer: str = ""

    @property
    def thread(self) -> str:
        """Return the assignment in whose thread people are asked."""
        return self.assignment_id if self.petition else self.id

    @property
    def next_due_at(self) -> datetime | None:
        """Return when the question needs attention next: a reminder, or its deadline."""
        if self.status is not QuestionStatus.OPEN:
            return None
        if self.warned_at:
            return self.due_at
        return min(self.asked_at + (WARNED_AFTER if self.reminded_at else REMINDED_AFTER), self.due_at)

    def rejection_reason(self, person: str, text: str, asked_at: str = "") -> str:
        """Return why a text is not a valid answer, or "". `asked_at` identifies the question that the person saw."""
        if asked_at and asked_at != self.asked_at.isoformat():
            return "that question is closed"
        if self.status is QuestionStatus.ANSWERED:
            return f"the question was already answered by {self.answered_by or 'a person'}"
        if self.status is QuestionStatus.EXPIRED:
            return "the time for an answer is over"
        if self.people and person not in self.people:
            return f"{person or 'an unknown person'} may not answer; allowed: {', '.join(self.people)}"
        if self.exact and self.matching_choice(text) is None:
            return f"this is not one of the choices; answer with one of: {', '.join(self.choices)}"
        return "" if text.strip() else "the answer is empty"

    def matching_choice(self, text: str) -> str | None:
        """Return the choice that an answer names, or None."""
        return next((choice for choice in self.choices if choice.lower() == text.strip().lower()), None)

    def similar_choice(self, text: str) -> str | None:
        """Return the choice that a text resembles, if any. Such a text is more often a typo than free text."""
        typed, choices = text.strip().lower(), {choice.lower(): choice for choice in self.choices}
        if self.exact or not typed or typed in choices:
            return None
        completions = [choice for choice in choices if choice.startswith(typed)]
        return next((choices[near] for near in completions or get_close_matches(typed, choices, n=1)), None)

    def with_answer(self, person: str, text: str) -> "HumanQuestion":
        """Return the question with its answer."""
        return msgspec.structs.replace(self, status=QuestionStatus.ANSWERED, answered_by=person, answer=text)

    def as_expired(self) -> "HumanQuestion":
        """Return the question as expired."""
        return msgspec.structs.replace(self, status=QuestionStatus.EXPIRED)


QUESTIONS = RecordKind(
    name="ask",
    directories={status: f"state/asks/{status}" for status in QuestionStatus},
    final=frozenset({QuestionStatus.ANSWERED, QuestionStatus.EXPIRED}),
    retention=_KEPT,
)


async def load_question(transaction: Transaction, question_id: str) -> tuple[Record, HumanQuestion] | None:
    """Return the latest question of a root assignment or petition, or None."""
    record = await transaction.get(QUESTIONS.name, question_id)
    return (record, read_document(record.doc, HumanQuestion)) if record else None


async def find_pending_answer(transaction: Transaction, question: HumanQuestion) -> Record | None:
    """Return the event of an answer that the King has not processed yet, or None."""
    found = await transaction.get(EVENTS.name, question.given) if question.given else None
    return found if found and found.state == EventStatus.PENDING else None


async def save_question(transaction: Transaction, question: HumanQuestion, record: Record | None = None) -> None:
    """Store a question. It replaces an earlier question with the same id."""
    await transaction.put(
        Record(
            kind=QUESTIONS.name,
            id=question.id,
            version=record.version if record else 0,
            state=question.status,
            due_at=question.next_due_at,
            doc=msgspec.to_builtins(question),
        )
    )


async def ask_people(transaction: Transaction, question: HumanQuestion, *, channel: str, today: date) -> None:
    """Store a new question and queue its message in the thread that it belongs to."""
    known = await load_question(transaction, question.id)
    await save_question(transaction, question, known[0] if known else None)
    context = {
        "task_id": question.thread,
        "choices": list(question.choices),
        "asked_at": question.asked_at.isoformat(),
        "due_at": question.due_at.isoformat(),
    }
    await queue_message(
        transaction,
        MessageType.HUMAN_INPUT_REQUEST,
        question.text,
        channel=channel,
        thread=question.thread,
        today=today,
        context={**context, "ask_id": question.id} if question.petition else context,
        urgency=Urgency.HIGH,
    )


async def close_question(transaction: Transaction, question_id: str) -> None:
    """Expire a question if it is still open."""
    known = await load_question(transaction, question_id)
    if known and known[1].status is QuestionStatus.OPEN:
        await save_question(transaction, known[1].as_expired(), known[0])
