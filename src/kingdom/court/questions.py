"""Questions to people: one at a time for each root assignment and each petition, and the first valid answer counts."""

from datetime import date, datetime, timedelta
from enum import StrEnum

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.court.documents import MessageType, Urgency
from kingdom.court.records import queue_message

# After so long without an answer people are reminded once.
REMINDED_AFTER = timedelta(hours=24)
# And after so long, once more and louder.
WARNED_AFTER = timedelta(days=7)
_KEPT = timedelta(days=7)
# The choices where a person only has to agree or not.
APPROVE, REJECT = "approve", "reject"
# What a question names as its run that no run waits for, so that none is given up when nobody answers.
WITHOUT_RUN = "none"


class QuestionStatus(StrEnum):
    """Whether a question still wants an answer."""

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
    """One question; its id is the root assignment, `assignment_id` the assignment in which it came up.

    Where a `petition` needs approval, the question is named for it, so that no answer is ever taken for another one.
    `people` are those who may answer, nobody named means everybody; `default` is the answer if nobody does in time.
    """

    id: str
    assignment_id: str
    general: str
    workflow_id: str
    text: str
    asked_at: datetime
    due_at: datetime
    petition: str = ""
    status: QuestionStatus = msgspec.field(default_factory=lambda: QuestionStatus.OPEN)
    choices: tuple[str, ...] = ()
    # Nothing but one of the choices is an answer, as at a gate.
    exact: bool = False
    people: tuple[str, ...] = ()
    # What going on with an answer takes of the day's money, where that is known.
    usd: float | None = None
    default: str = ""
    reminded_at: datetime | None = None
    warned_at: datetime | None = None
    # The event of the latest answer that was handed to the King.
    given: str = ""
    answered_by: str = ""
    answer: str = ""

    @property
    def thread(self) -> str:
        """Return the assignment in whose thread people are asked."""
        return self.assignment_id if self.petition else self.id

    @property
    def next_due_at(self) -> datetime | None:
        """Return when something is to be done about it: remind people, or go on without them."""
        if self.status is not QuestionStatus.OPEN:
            return None
        if self.warned_at:
            return self.due_at
        return min(self.asked_at + (WARNED_AFTER if self.reminded_at else REMINDED_AFTER), self.due_at)

    def rejection_reason(self, person: str, text: str, asked_at: str = "") -> str:
        """Return why this is no answer to it, or nothing where it is one; `asked_at` names the question it is for."""
        if asked_at and asked_at != self.asked_at.isoformat():
            return "that question is over"
        if self.status is QuestionStatus.ANSWERED:
            return f"the question was answered already, by {self.answered_by or 'somebody'}"
        if self.status is QuestionStatus.EXPIRED:
            return "the time for an answer is over"
        if self.people and person not in self.people:
            return f"{person or 'somebody without a name'} may not answer; these may: {', '.join(self.people)}"
        if self.exact and self.matching_choice(text) is None:
            return f"this is no answer to it; answer with one of: {', '.join(self.choices)}"
        return "" if text.strip() else "the answer is empty"

    def matching_choice(self, text: str) -> str | None:
        """Return the choice that an answer names, if it does."""
        return next((choice for choice in self.choices if choice.lower() == text.strip().lower()), None)

    def with_answer(self, person: str, text: str) -> "HumanQuestion":
        """Return the question with its answer."""
        return msgspec.structs.replace(self, status=QuestionStatus.ANSWERED, answered_by=person, answer=text)

    def as_expired(self) -> "HumanQuestion":
        """Return the question that nobody answered in time."""
        return msgspec.structs.replace(self, status=QuestionStatus.EXPIRED)


QUESTIONS = RecordKind(
    name="ask",
    directories={status: f"state/asks/{status}" for status in QuestionStatus},
    final=frozenset({QuestionStatus.ANSWERED, QuestionStatus.EXPIRED}),
    retention=_KEPT,
)


async def load_question(transaction: Transaction, question_id: str) -> tuple[Record, HumanQuestion] | None:
    """Return the latest question of a root assignment or a petition, if it ever asked."""
    record = await transaction.get(QUESTIONS.name, question_id)
    return (record, read_document(record.doc, HumanQuestion)) if record else None


async def save_question(transaction: Transaction, question: HumanQuestion, record: Record | None = None) -> None:
    """Store a question; a new one of the same assignment takes the place of the one before."""
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
    """Store a new question, and have people asked it in the thread that it belongs to."""
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
    """Let nobody answer any more what is still open."""
    known = await load_question(transaction, question_id)
    if known and known[1].status is QuestionStatus.OPEN:
        await save_question(transaction, known[1].as_expired(), known[0])
