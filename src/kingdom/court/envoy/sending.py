"""Send queued messages with any messenger. Each message is one effect."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from kingdom.bus.effects.effect import Acked, Attempt, CallResult, Effect, ReconcileResult, Rejected
from kingdom.bus.event import Event
from kingdom.bus.outcome import Dead, Done, Outcome
from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import MessageSent
from kingdom.court.documents import Assignment, AssignmentStatus, ExternalEvent, Message, MessageStatus, MessageType
from kingdom.court.envoy.answers import QUESTION_OVER, describe_end
from kingdom.court.envoy.background import BackgroundTasks
from kingdom.court.envoy.messenger import Messenger, OutgoingMessage, ProgressMark
from kingdom.court.envoy.records import (
    ENVOY,
    MessageThread,
    ShownQuestion,
    load_entries,
    remove_entry,
    save_entry,
    save_report_date,
)
from kingdom.court.envoy.slack_format import question_id_of
from kingdom.court.questions import QuestionStatus, close_question, load_question
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.streams import MessageQueued
from kingdom.errors import NotFound

SLACK = "slack"
# The key in the context of a reminder for the thread of its question.
THREAD_TS = "thread_ts"
_MARKS = {
    AssignmentStatus.COMPLETED: ProgressMark.DONE,
    AssignmentStatus.SKIPPED: ProgressMark.DONE,
    AssignmentStatus.FAILED: ProgressMark.FAILED,
}


class SendMessage(Effect[MessageQueued]):
    """Sends a message in its thread, or on its own if it has no thread.

    A queued message never changes, and only earlier messages of the same ordered stream change its thread. So every
    attempt reads the same data from the store.
    """

    def __init__(self, bus: Bus, messenger: Messenger, background: BackgroundTasks, channel: str) -> None:
        self.target = messenger.target
        self._bus = bus
        self._messenger = messenger
        self._background = background
        self._channel = channel

    def key(self, event: Event[MessageQueued]) -> str:
        """See `Effect.key`."""
        return event.payload.message_id

    def request(self, event: Event[MessageQueued]) -> Mapping[str, Any]:
        """See `Effect.request`."""
        # Two stores may use the same message id, but not the same event id.
        key = str(event.envelope.event_id)
        return {"message_id": event.payload.message_id, "key": key, "channel": self._channel}

    async def call(self, attempt: Attempt) -> CallResult:
        """See `Effect.call`."""
        try:
            post = await self._outgoing_message(attempt)
        except NotFound as error:
            return Rejected(f"the message no longer exists: {error}")
        return await self._messenger.post(post)

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """See `Effect.reconcile`."""
        return await self._messenger.find(await self._outgoing_message(attempt))

    async def conclude(
        self, event: Event[MessageQueued], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        """Store the thread and the shown question. A rejected message becomes a dead letter for a person."""
        if isinstance(answer, Rejected):
            return Dead(answer.reason, "rejected")
        record, message = await load(transaction, Message, event.payload.message_id)
        await save(transaction, msgspec.structs.replace(message, status=MessageStatus.SENT), record)
        channel, ts = str(answer.response.get("channel") or message.channel), str(answer.response.get("ts") or "")
        assignment_id = assignment_id_of(message)
        sent = MessageSent(msg_id=message.id, assignment_id=assignment_id, channel=channel)
        await log_event(transaction, sent, ENVOY)
        if message.type is MessageType.REPORT:
            date = str(message.context.get("date") or message.created_at.date())
            await save_report_date(transaction, date)
        if assignment_id:
            await self._update_entries(transaction, message, assignment_id, channel, ts)
        return Done()

    async def _update_entries(
        self, transaction: Transaction, message: Message, assignment_id: str, channel: str, ts: str
    ) -> None:
        """Store or remove the thread and the shown question of an assignment."""
        if message.type is MessageType.THREAD_START and ts:
            asked = message.channel or self._channel
            thread = MessageThread(channel=channel, thread_ts=ts, created_at=message.created_at, asked=asked)
            await save_entry(transaction, assignment_id, thread)
        if message.type is MessageType.HUMAN_INPUT_REQUEST:
            await self._save_question(transaction, message, channel, ts)
            await self._mark(transaction, assignment_id, ProgressMark.NEEDS_PERSON)
        if ending := final_status_of(message):
            await self._end(transaction, assignment_id)
            await self._mark(transaction, assignment_id, _MARKS.get(ending, ProgressMark.DONE))

    async def _end(self, transaction: Transaction, assignment_id: str) -> None:
        """Remove the thread of an assignment that has ended, and close its question."""
        await remove_entry(transaction, MessageThread, assignment_id)
        found = await load_question(transaction, assignment_id)
        if found and found[1].followup:
            # It is about the pull request, so people may still answer it. The reminders remove what is shown of it.
            return
        if question := await remove_entry(transaction, ShownQuestion, assignment_id):
            self._end_later(transaction, question, QUESTION_OVER)
        await close_question(transaction, assignment_id)

    async def _save_question(self, transaction: Transaction, message: Message, channel: str, ts: str) -> None:
        """Store the question that people now see, or end it if it is no longer open. It replaces an earlier one."""
        thread = (await load_entries(transaction, MessageThread)).get(assignment_id_of(message))
        question = ShownQuestion(
            msg_id=message.id,
            channel=channel,
            message_ts=ts,
            thread_ts=thread.thread_ts if thread else ts,
            question=message.content,
            created_at=message.created_at,
        )
        question_id = question_id_of(message)
        if replaced := await remove_entry(transaction, ShownQuestion, question_id):
            self._end_later(transaction, replaced, QUESTION_OVER)
        found = await load_question(transaction, question_id)
        if found and found[1].status is QuestionStatus.OPEN:
            await save_entry(transaction, question_id, question)
        else:
            self._end_later(transaction, question, describe_end(found[1]) if found else QUESTION_OVER)

    def _end_later(self, transaction: Transaction, question: ShownQuestion, ending: str) -> None:
        """Remove the buttons of a question after the commit."""
        if question.message_ts:
            end = partial(self._messenger.end_question, question, ending)
            transaction.after_commit(lambda: self._background.start(f"end the question {question.msg_id}", end))

    async def _mark(self, transaction: Transaction, assignment_id: str, mark: ProgressMark) -> None:
        """Show progress on the Slack message that the assignment came from, if any."""
        source = await _find_slack_source(transaction, assignment_id)
        if source is None:
            return
        show = partial(self._messenger.mark, *source, mark)
        transaction.after_commit(lambda: self._background.start(f"mark {assignment_id} {mark}", show))

    async def _outgoing_message(self, attempt: Attempt) -> OutgoingMessage:
        async with self._bus.transaction() as transaction:
            _, message = await load(transaction, Message, attempt.request["message_id"])
            threads = await load_entries(transaction, MessageThread)
        return OutgoingMessage(
            message=message,
            channel=message.channel or attempt.request.get("channel", self._channel),
            thread=_thread_for(message, threads.get(assignment_id_of(message)) or _thread_of_reminder(message)),
            key=attempt.request["key"],
            identifier=attempt.identifier,
            attempt=attempt.number,
        )


def assignment_id_of(message: Message) -> str:
    """Return the assignment that a message belongs to, or ""."""
    return str(message.context.get("task_id") or "")


def _thread_for(message: Message, thread: MessageThread | None) -> MessageThread | None:
    """Return the thread for a message. A notification to another channel is sent there instead."""
    elsewhere = message.type is MessageType.NOTIFICATION and thread and not thread.is_in(message.channel)
    return None if message.type is MessageType.THREAD_START or elsewhere else thread


def _thread_of_reminder(message: Message) -> MessageThread | None:
    """Return the thread in which people see the question of a reminder, if it names one."""
    ts = str(message.context.get(THREAD_TS) or "")
    return MessageThread(channel=message.channel, thread_ts=ts, created_at=message.created_at) if ts else None


def final_status_of(message: Message) -> AssignmentStatus | None:
    """Return the final status of an assignment, if the message reports one."""
    if message.type is not MessageType.THREAD_UPDATE:
        return None
    status = message.context.get("status")
    ended = next((each for each in ASSIGNMENTS.final if each == status), None)
    if ended is None and message.context.get("final") is True:
        return AssignmentStatus.COMPLETED
    return AssignmentStatus(ended) if ended else None


async def _find_slack_source(transaction: Transaction, assignment_id: str) -> tuple[str, str] | None:
    """Return the channel and time of the Slack message that an assignment came from, or None."""
    record = await transaction.get(ASSIGNMENTS.name, assignment_id)
    if record is None:
        return None
    assignment = msgspec.convert(record.doc, Assignment)
    found = await transaction.get(EVENTS.name, assignment.cause_id)
    event = msgspec.convert(found.doc, ExternalEvent) if found else None
    if event is None or event.source != SLACK:
        return None
    channel, ts = event.payload.get("channel"), event.payload.get("ts")
    return (str(channel), str(ts)) if channel and ts else None
