"""Answers of people, wherever they come from: which question they are for, and whether they count."""

from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import OnUnreadable, Record, RecordQuery, ignore_unreadable, read_document, read_documents
from kingdom.chronicle.catalogue import chronicle
from kingdom.chronicle.events import HumanResponded
from kingdom.court.asks import ASKS, Ask, AskStatus, load_ask, save_ask
from kingdom.court.documents import Assignment, EventStatus, ExternalEvent, Priority
from kingdom.court.envoy.records import ENVOY, Awaited
from kingdom.court.records import ASSIGNMENTS, EVENTS, receive, save
from kingdom.court.streams import petitions_due
from kingdom.workflow.records import each

TEXT_MAX = 20_000
_SHOWN_MAX = 80
OVER = "This question is over."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person said to a question, and when: the same moment is the same answer.

    `asked_at` tells which question of the assignment it is for; nothing means the one that is asked now.
    """

    source: str
    task_id: str
    text: str
    person: str
    at: str
    thread_ts: str = ""
    asked_at: str = ""

    @property
    def event_id(self) -> str:
        """Return the id of the event that it becomes."""
        return f"evt-{self.source}-response-{self.task_id}-{self.at}"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of words: `refusal` tells why an answer does not count, `question` where people see it asked."""

    is_new: bool
    refusal: str = ""
    question: Awaited | None = None
    is_answer: bool = True


async def find_ask(transaction: Transaction, task_id: str) -> Ask | None:
    """Return the latest question of an assignment or of the root that it belongs to, or that of a petition."""
    found = await _find(transaction, task_id)
    return found[1] if found else None


async def _find(transaction: Transaction, task_id: str) -> tuple[Record, Ask] | None:
    found = await transaction.get(ASSIGNMENTS.name, task_id)
    root_id = read_document(found.doc, Assignment).root_id if found else task_id
    return await load_ask(transaction, root_id)


async def open_asks(transaction: Transaction, leave_out: OnUnreadable = ignore_unreadable) -> list[Ask]:
    """Return every question that waits for an answer and can be read, the oldest first."""
    found = [record async for record in each(transaction, RecordQuery(kind=ASKS.name, state=AskStatus.OPEN))]
    return sorted(read_documents(found, Ask, leave_out), key=lambda ask: ask.asked_at)


async def unheard_answer(transaction: Transaction, ask: Ask) -> Record | None:
    """Return the event that answers an open question and that the King has not taken up yet."""
    found = await transaction.get(EVENTS.name, ask.given) if ask.given else None
    return found if found and found.state == EventStatus.PENDING else None


async def take_answer(transaction: Transaction, answer: Answer, now: datetime) -> Taken:
    """Hand an answer to the King unless it cannot count, or another one waits for him; the first one counts.

    One about a petition counts at once: nothing is resumed by it, so the General is told and not the King.
    Where people see the question is left as it is, until the Envoy shows there how it ended.
    """
    if await transaction.get(EVENTS.name, answer.event_id):
        return Taken(is_new=False)
    found = await _find(transaction, answer.task_id)
    if found is None:
        return Taken(is_new=False, refusal=f"{answer.task_id} asks nothing")
    # What is saved is the version that was judged, so that of two at once one begins again.
    record, ask = found
    if refusal := ask.refuses(answer.person, answer.text, answer.asked_at):
        return Taken(is_new=False, refusal=refusal)
    if first := await unheard_answer(transaction, ask):
        heard = read_document(first.doc, ExternalEvent).payload
        said = f"by {heard['user'] or 'somebody'}: {shorten(str(heard['text']), _SHOWN_MAX)}"
        refusal = f"the question was answered already, {said}; the King takes that up as soon as he runs"
        return Taken(is_new=False, refusal=refusal)
    event = ExternalEvent(
        id=answer.event_id,
        type=f"{answer.source}.human_response",
        source=answer.source,
        repo=None,
        payload={
            "task_id": ask.id,
            "text": answer.text,
            "user": answer.person,
            "thread_ts": answer.thread_ts,
            "asked_at": ask.asked_at.isoformat(),
        },
        priority=Priority.HIGH,
        created_at=now,
        status=EventStatus.PENDING,
    )
    if ask.petition:
        await _decide(transaction, event, ask.answered(answer.person, answer.text), record)
    elif await receive(transaction, event, ENVOY):
        await save_ask(transaction, msgspec.structs.replace(ask, given=event.id), record)
    else:
        return Taken(is_new=False)
    await chronicle(transaction, HumanResponded(task_id=ask.thread, thread_ts=answer.thread_ts), ENVOY)
    return Taken(is_new=True)


async def _decide(transaction: Transaction, event: ExternalEvent, ask: Ask, record: Record) -> None:
    """Write down what a person says to a petition, and tell its General."""
    await save_ask(transaction, ask, record)
    decided = msgspec.structs.replace(
        event, status=EventStatus.COMPLETED, outcome="answered", reason=f"it is about the petition {ask.petition}"
    )
    await save(transaction, decided)
    await transaction.publish(petitions_due(ask.petition, ask.task_id))


def how_it_ended(ask: Ask) -> str:
    """Return for people what became of a question."""
    if ask.status is AskStatus.EXPIRED:
        return "Nobody answered in time."
    by = f" by {ask.answered_by}" if ask.answered_by else ""
    return f"Answered{by}: {ask.answer}" if ask.answer else f"Answered{by}."
