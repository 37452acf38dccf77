"""Questions that wait for a person, and their answers."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec

from kingdom.actions.listings import list_records
from kingdom.bus.port import Transaction
from kingdom.bus.record import OnUnreadable, Record, ignore_unreadable, read_documents
from kingdom.court import records
from kingdom.court.documents import Assignment, ExternalEvent, title_of
from kingdom.court.envoy.answers import PersonAnswer, submit_answer
from kingdom.court.petitions.decision import PETITIONS, Petition
from kingdom.court.questions import QUESTIONS, WITHOUT_RUN, HumanQuestion, QuestionStatus, find_pending_answer
from kingdom.errors import Permanent
from kingdom.views.questions import AnswerResult, OpenQuestion

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """An open question as people see it, and the question as it is stored. `run` is the id of its run.

    `kind` is the kind of the petition that needs approval, or "".
    """

    question: OpenQuestion
    ask: HumanQuestion
    run: str
    kind: str = ""


async def read_inbox(transaction: Transaction, *, after: str | None, limit: int) -> tuple[list[InboxItem], str | None]:
    """Return a page of open questions, the oldest first within the page, and the cursor of the next page."""
    page = await list_records(transaction, QUESTIONS, state=QuestionStatus.OPEN, after=after, limit=limit)
    asks = sorted(page.read(HumanQuestion), key=lambda ask: ask.asked_at)
    needed = [(records.ASSIGNMENTS.name, ask.assignment_id) for ask in asks]
    needed += [(records.EVENTS.name, ask.given) for ask in asks if ask.given]
    needed += [(PETITIONS.name, ask.petition) for ask in asks if ask.petition]
    if needed:
        await transaction.read_ahead(needed)
    return [await _to_inbox_item(transaction, ask) for ask in asks], page.next


async def _to_inbox_item(transaction: Transaction, ask: HumanQuestion) -> InboxItem:
    record = await transaction.get(PETITIONS.name, ask.petition) if ask.petition else None
    petition = next(read_documents([record] if record else [], Petition), None)
    question = await to_open_question(transaction, ask)
    if petition:
        return InboxItem(question=question, ask=ask, run=petition.workflow_id, kind=petition.kind)
    return InboxItem(question=question, ask=ask, run="" if ask.workflow_id == WITHOUT_RUN else ask.workflow_id)


async def to_open_question(
    transaction: Transaction, ask: HumanQuestion, on_unreadable: OnUnreadable = ignore_unreadable
) -> OpenQuestion:
    """Return a question as people see it, with the answer that the King has not processed yet."""

    def read(record: Record | None, kind: type[_T]) -> _T | None:
        return next(read_documents([record] if record else [], kind, on_unreadable), None)

    assignment = read(await transaction.get(records.ASSIGNMENTS.name, ask.assignment_id), Assignment)
    given = read(await find_pending_answer(transaction, ask), ExternalEvent)
    return OpenQuestion(
        task_id=ask.id,
        general=ask.general,
        about=_about(assignment) if assignment else "",
        question=ask.text,
        choices=ask.choices,
        people=ask.people,
        asked_at=ask.asked_at,
        due_at=ask.due_at,
        default=ask.default,
        digest=digest_of(ask),
        answer=given.payload["text"] if given else msgspec.UNSET,
        petition_id=ask.petition or msgspec.UNSET,
    )


def digest_of(ask: HumanQuestion) -> str:
    """Return the digest of a question and its choices; the text of a question contains the petition to approve."""
    seen = (ask.id, ask.asked_at.isoformat(), ask.text, *ask.choices)
    return hashlib.sha256(msgspec.json.encode(seen)).hexdigest()


async def answer_question(
    transaction: Transaction, ask: HumanQuestion, given: PersonAnswer, now: datetime, *, words: bool
) -> AnswerResult:
    """Submit an answer. Raise Permanent if the question does not accept it, or if it looks like a misspelled choice.

    With `words`, the text is free text, even if it resembles a choice.
    """
    if not words and (meant := ask.similar_choice(given.text)):
        choices = ", ".join(ask.choices)
        raise Permanent(f"{given.text} is not one of {choices}; did you mean {meant}? For free text add --words")
    taken = await submit_answer(transaction, given, now)
    if taken.refusal:
        raise Permanent(f"{ask.id} does not accept this answer: {taken.refusal}; `kingdom inbox` shows open questions")
    return AnswerResult(task_id=ask.id, event_id=given.event_id, question=ask.text)


def _about(assignment: Assignment) -> str:
    """Describe the event behind an assignment in one line."""
    number = f"#{number}" if (number := assignment.payload.get("number")) else ""
    return f"{assignment.type} {assignment.repo or ''}{number} {title_of(assignment.payload)}".strip()
