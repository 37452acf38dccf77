"""Questions to people: one at a time for each root assignment and each petition, and the first valid answer counts."""

from datetime import date, datetime, timedelta
from enum import StrEnum

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.court.documents import MessageType, Urgency
from kingdom.court.records import tell_people

# After so long without an answer people are reminded once.
REMINDED_AFTER = timedelta(hours=24)
# And after so long, once more and louder.
WARNED_AFTER = timedelta(days=7)
_KEPT = timedelta(days=7)
# The choices where a person only has to agree or not.
APPROVE, REJECT = "approve", "reject"
# What a question names as its run that no run waits for, so that none is given up when nobody answers.
NO_RUN = "none"


class AskStatus(StrEnum):
    """Whether a question still wants an answer."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question; its id is the root assignment, `task_id` the assignment in which it came up.

    Where a `petition` needs approval, the question is named for it, so that no answer is ever taken for another one.
    `people` are those who may answer, nobody named means everybody; `default` is the answer if nobody does in time.
    """

    id: str
    task_id: str
    general: str
    workflow_id: str
    question: str
    asked_at: datetime
    due_at: datetime
    petition: str = ""
    status: AskStatus = msgspec.field(default_factory=lambda: AskStatus.OPEN)
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
        return self.task_id if self.petition else self.id

    @property
    def next_due_at(self) -> datetime | None:
        """Return when something is to be done about it: remind people, or go on without them."""
        if self.status is not AskStatus.OPEN:
            return None
        if self.warned_at:
            return self.due_at
        return min(self.asked_at + (WARNED_AFTER if self.reminded_at else REMINDED_AFTER), self.due_at)

    def refuses(self, person: str, text: str, asked_at: str = "") -> str:
        """Return why this is no answer to it, or nothing where it is one; `asked_at` names the question it is for."""
        if asked_at and asked_at != self.asked_at.isoformat():
            return "that question is over"
        if self.status is AskStatus.ANSWERED:
            return f"the question was answered already, by {self.answered_by or 'somebody'}"
        if self.status is AskStatus.EXPIRED:
            return "the time for an answer is over"
        if self.people and person not in self.people:
            return f"{person or 'somebody without a name'} may not answer; these may: {', '.join(self.people)}"
        if self.exact and self.chosen(text) is None:
            return f"this is no answer to it; answer with one of: {', '.join(self.choices)}"
        return "" if text.strip() else "the answer is empty"

    def chosen(self, text: str) -> str | None:
        """Return the choice that an answer names, if it does."""
        return next((choice for choice in self.choices if choice.lower() == text.strip().lower()), None)

    def answered(self, person: str, text: str) -> "Ask":
        """Return the question with its answer."""
        return msgspec.structs.replace(self, status=AskStatus.ANSWERED, answered_by=person, answer=text)

    def expired(self) -> "Ask":
        """Return the question that nobody answered in time."""
        return msgspec.structs.replace(self, status=AskStatus.EXPIRED)


ASKS = RecordKind(
    name="ask",
    directories={status: f"state/asks/{status}" for status in AskStatus},
    final=frozenset({AskStatus.ANSWERED, AskStatus.EXPIRED}),
    retention=_KEPT,
)


async def load_ask(transaction: Transaction, ask_id: str) -> tuple[Record, Ask] | None:
    """Return the latest question of a root assignment or a petition, if it ever asked."""
    record = await transaction.get(ASKS.name, ask_id)
    return (record, read_document(record.doc, Ask)) if record else None


async def save_ask(transaction: Transaction, ask: Ask, record: Record | None = None) -> None:
    """Store a question; a new one of the same assignment takes the place of the one before."""
    await transaction.put(
        Record(
            kind=ASKS.name,
            id=ask.id,
            version=record.version if record else 0,
            state=ask.status,
            due_at=ask.next_due_at,
            doc=msgspec.to_builtins(ask),
        )
    )


async def ask_people(transaction: Transaction, ask: Ask, *, channel: str, today: date) -> None:
    """Store a new question, and have people asked it in the thread that it belongs to."""
    known = await load_ask(transaction, ask.id)
    await save_ask(transaction, ask, known[0] if known else None)
    context = {
        "task_id": ask.thread,
        "choices": list(ask.choices),
        "asked_at": ask.asked_at.isoformat(),
        "due_at": ask.due_at.isoformat(),
    }
    await tell_people(
        transaction,
        MessageType.HUMAN_INPUT_REQUEST,
        ask.question,
        channel=channel,
        thread=ask.thread,
        today=today,
        context={**context, "ask_id": ask.id} if ask.petition else context,
        urgency=Urgency.HIGH,
    )


async def ask_no_more(transaction: Transaction, ask_id: str) -> None:
    """Let nobody answer any more what is still open."""
    known = await load_ask(transaction, ask_id)
    if known and known[1].status is AskStatus.OPEN:
        await save_ask(transaction, known[1].expired(), known[0])
