"""Telling people: one effect for every message, wherever people are; what follows is written with its answer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from kingdom.bus.effects.effect import Acked, Attempt, CallResult, Effect, ReconcileResult, Rejected
from kingdom.bus.event import Event
from kingdom.bus.outcome import Dead, Done, Outcome
from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.catalogue import chronicle
from kingdom.chronicle.events import MessageSent
from kingdom.court.asks import AskStatus, ask_no_more, load_ask
from kingdom.court.documents import (
    Assignment,
    AssignmentStatus,
    ExternalEvent,
    Message,
    MessageStatus,
    MessageType,
)
from kingdom.court.envoy.answers import OVER, how_it_ended
from kingdom.court.envoy.asides import Asides
from kingdom.court.envoy.place import Mark, Place, Post
from kingdom.court.envoy.records import ENVOY, Awaited, Thread, entries, forget, keep, note_report
from kingdom.court.envoy.slack_words import ask_of
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.streams import MessageQueued
from kingdom.errors import NotFound

SLACK = "slack"
_MARKS = {
    AssignmentStatus.COMPLETED: Mark.DONE,
    AssignmentStatus.SKIPPED: Mark.DONE,
    AssignmentStatus.FAILED: Mark.FAILED,
}


class Tell(Effect[MessageQueued]):
    """Says a message in its thread, or on its own where there is none.

    A message never changes once it is queued, and its thread only by messages before it in the same order, as long as
    there is the assignment: so what is read from the store here is the same for every attempt.
    """

    def __init__(self, bus: Bus, place: Place, asides: Asides, channel: str) -> None:
        self.target = place.target
        self._bus = bus
        self._place = place
        self._asides = asides
        self._channel = channel

    def key(self, event: Event[MessageQueued]) -> str:
        """See the port."""
        return event.payload.message_id

    def request(self, event: Event[MessageQueued]) -> Mapping[str, Any]:
        """See the port."""
        # Ids of messages begin anew with another store, that of the event is nobody else's.
        key = str(event.envelope.event_id)
        return {"message_id": event.payload.message_id, "key": key, "channel": self._channel}

    async def call(self, attempt: Attempt) -> CallResult:
        """See the port."""
        try:
            post = await self._post(attempt)
        except NotFound as error:
            return Rejected(f"nothing is left to be said: {error}")
        return await self._place.post(post)

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """See the port."""
        return await self._place.find(await self._post(attempt))

    async def conclude(
        self, event: Event[MessageQueued], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        """Write where the message stands and what is awaited from now on; a refused one waits for a person."""
        if isinstance(answer, Rejected):
            return Dead(answer.reason, "rejected")
        record, message = await load(transaction, Message, event.payload.message_id)
        await save(transaction, msgspec.structs.replace(message, status=MessageStatus.SENT), record)
        channel, ts = str(answer.response.get("channel") or message.channel), str(answer.response.get("ts") or "")
        task_id = task_of(message)
        sent = MessageSent(msg_id=message.id, task_id=task_id, channel=channel)
        await chronicle(transaction, sent, ENVOY)
        if message.type is MessageType.REPORT:
            date = str(message.context.get("date") or message.created_at.date())
            await note_report(transaction, date)
        if task_id:
            await self._follow(transaction, message, task_id, channel, ts)
        return Done()

    async def _follow(self, transaction: Transaction, message: Message, task_id: str, channel: str, ts: str) -> None:
        """Keep or end the thread and the question of an assignment."""
        if message.type is MessageType.THREAD_START and ts:
            asked = message.channel or self._channel
            thread = Thread(channel=channel, thread_ts=ts, created_at=message.created_at, asked=asked)
            await keep(transaction, task_id, thread)
        if message.type is MessageType.HUMAN_INPUT_REQUEST:
            await self._await_answer(transaction, message, channel, ts)
            await self._mark(transaction, task_id, Mark.NEEDS_PERSON)
        if ending := ending_of(message):
            await self._end(transaction, task_id)
            await self._mark(transaction, task_id, _MARKS.get(ending, Mark.DONE))

    async def _end(self, transaction: Transaction, task_id: str) -> None:
        """Forget the thread of work that is over, and let nobody answer for it any more."""
        await forget(transaction, Thread, task_id)
        if question := await forget(transaction, Awaited, task_id):
            self._end_later(transaction, question, OVER)
        await ask_no_more(transaction, task_id)

    async def _await_answer(self, transaction: Transaction, message: Message, channel: str, ts: str) -> None:
        thread = (await entries(transaction, Thread)).get(task_of(message))
        question = Awaited(
            msg_id=message.id,
            channel=channel,
            message_ts=ts,
            thread_ts=thread.thread_ts if thread else ts,
            question=message.content,
            created_at=message.created_at,
        )
        ask_id = ask_of(message)
        found = await load_ask(transaction, ask_id)
        if found and found[1].status is AskStatus.OPEN:
            await keep(transaction, ask_id, question)
        else:
            # Somebody was faster than the message.
            self._end_later(transaction, question, how_it_ended(found[1]) if found else OVER)

    def _end_later(self, transaction: Transaction, question: Awaited, ending: str) -> None:
        """Take the buttons of a question away once all of this is committed."""
        if question.message_ts:
            end = partial(self._place.end_question, question, ending)
            transaction.after_commit(lambda: self._asides.begin(f"end the question {question.msg_id}", end))

    async def _mark(self, transaction: Transaction, task_id: str, mark: Mark) -> None:
        """Show the state on the message of a person that began all this, if one did."""
        source = await _source(transaction, task_id)
        if source is None:
            return
        show = partial(self._place.mark, *source, mark)
        transaction.after_commit(lambda: self._asides.begin(f"mark {task_id} {mark}", show))

    async def _post(self, attempt: Attempt) -> Post:
        async with self._bus.transaction() as transaction:
            _, message = await load(transaction, Message, attempt.request["message_id"])
            threads = await entries(transaction, Thread)
        return Post(
            message=message,
            channel=message.channel or attempt.request.get("channel", self._channel),
            thread=_thread_for(message, threads.get(task_of(message))),
            key=attempt.request["key"],
            identifier=attempt.identifier,
            attempt=attempt.number,
        )


def task_of(message: Message) -> str:
    """Return the assignment that a message belongs to, if any."""
    return str(message.context.get("task_id") or "")


def _thread_for(message: Message, thread: Thread | None) -> Thread | None:
    """Return the thread that a message belongs into; who wants something told in another channel is given that."""
    elsewhere = message.type is MessageType.NOTIFICATION and thread and not thread.is_in(message.channel)
    return None if message.type is MessageType.THREAD_START or elsewhere else thread


def ending_of(message: Message) -> AssignmentStatus | None:
    """Return how an assignment ended, where a message tells people so."""
    if message.type is not MessageType.THREAD_UPDATE:
        return None
    status = message.context.get("status")
    ended = next((each for each in ASSIGNMENTS.final if each == status), None)
    if ended is None and message.context.get("final") is True:
        return AssignmentStatus.COMPLETED
    return AssignmentStatus(ended) if ended else None


async def _source(transaction: Transaction, task_id: str) -> tuple[str, str] | None:
    """Return the channel and the time of the Slack message that an assignment came from."""
    record = await transaction.get(ASSIGNMENTS.name, task_id)
    if record is None:
        return None
    assignment = msgspec.convert(record.doc, Assignment)
    found = await transaction.get(EVENTS.name, assignment.cause_id)
    event = msgspec.convert(found.doc, ExternalEvent) if found else None
    if event is None or event.source != SLACK:
        return None
    channel, ts = event.payload.get("channel"), event.payload.get("ts")
    return (str(channel), str(ts)) if channel and ts else None
