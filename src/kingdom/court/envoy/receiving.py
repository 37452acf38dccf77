"""Messages of people in Slack: an answer to a question, a request to the app, or neither."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kingdom.bus.port import Transaction
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.envoy.answers import TEXT_MAX, PersonAnswer, SubmissionResult, find_question, submit_answer
from kingdom.court.envoy.records import ENVOY, MessageThread, ShownQuestion, load_entries, remove_entry
from kingdom.court.envoy.sending import SLACK
from kingdom.court.envoy.slack_format import ButtonChoice, plain_text
from kingdom.court.questions import QuestionStatus
from kingdom.court.records import EVENTS, receive_event
from kingdom.court.sentinel.untrusted import clean_text

MENTION = "app_mention"
_MESSAGE = "message"
_DIRECT = "im"
# Other subtypes are edits, deletions, or messages of bots.
_MESSAGE_SUBTYPES = frozenset({None, "file_share", "thread_broadcast"})
_REQUIRED_FIELDS = ("channel", "user", "ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonMessage:
    """A message that a person wrote."""

    kind: str
    channel: str
    user: str
    text: str
    ts: str
    thread_ts: str = ""
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonClick:
    """A button that a person clicked."""

    choice: ButtonChoice
    channel: str
    user: str
    ts: str
    thread_ts: str


def read_message(event: dict[str, Any]) -> PersonMessage | None:
    """Return the message in a Slack event, or None if a bot wrote it or it is not new."""
    if (
        event.get("bot_id")
        or event.get("subtype") not in _MESSAGE_SUBTYPES
        or not all(map(event.get, _REQUIRED_FIELDS))
    ):
        return None
    words = {name: str(event.get(name) or "") for name in (*_REQUIRED_FIELDS, "text", "thread_ts")}
    kind = MENTION if event.get("type") == MENTION else _MESSAGE
    return PersonMessage(kind=kind, direct=event.get("channel_type") == _DIRECT, **words)


async def receive_message(transaction: Transaction, message: PersonMessage, now: datetime) -> SubmissionResult:
    """Process a message as an answer or a request. Processing it again changes nothing."""
    text = clean_text(plain_text(message.text), TEXT_MAX)
    if (
        message.thread_ts
        and message.thread_ts != message.ts
        and (question_id := await _question_of_thread(transaction, message))
    ):
        answer = PersonAnswer(
            source=SLACK,
            question_id=question_id,
            text=text,
            person=message.user,
            at=message.ts,
            thread_ts=message.thread_ts,
        )
        if await transaction.get(EVENTS.name, answer.event_id):
            return SubmissionResult(is_new=False)
        question = await find_question(transaction, question_id)
        if question and question.status is not QuestionStatus.ANSWERED:
            return await _submit(transaction, answer, now)
    if message.kind != MENTION and not message.direct:
        return SubmissionResult(is_new=False, is_answer=False)
    return SubmissionResult(
        is_new=await receive_event(transaction, _request_event(message, text, now), ENVOY), is_answer=False
    )


async def receive_click(transaction: Transaction, click: ButtonClick, now: datetime) -> SubmissionResult:
    """Process a click as an answer to the question of its button."""
    choice = click.choice
    answer = PersonAnswer(
        source=SLACK,
        question_id=choice.question_id,
        text=choice.choice,
        person=click.user,
        at=click.ts,
        thread_ts=click.thread_ts,
        asked_at=choice.asked_at,
    )
    return await _submit(transaction, answer, now)


async def _submit(transaction: Transaction, answer: PersonAnswer, now: datetime) -> SubmissionResult:
    """Submit an answer. If it is accepted, remove the shown question and return it, so that the caller can close it."""
    result = await submit_answer(transaction, answer, now)
    return (
        replace(result, question=await remove_entry(transaction, ShownQuestion, answer.question_id))
        if result.is_new
        else result
    )


async def _question_of_thread(transaction: Transaction, message: PersonMessage) -> str:
    """Return the id of the question that a reply in the message's thread answers, or "".

    In the thread of an assignment, that is the id of the assignment.
    """
    threads = await load_entries(transaction, MessageThread)
    questions = await load_entries(transaction, ShownQuestion)
    known: list[tuple[str, MessageThread | ShownQuestion]] = [*threads.items(), *questions.items()]
    for question_id, entry in known:
        if (entry.channel, entry.thread_ts) == (message.channel, message.thread_ts):
            return question_id
    return ""


def _request_event(message: PersonMessage, text: str, now: datetime) -> ExternalEvent:
    what = MENTION if message.kind == MENTION else "channel.message"
    return ExternalEvent(
        id=f"evt-{SLACK}-{message.kind}-{message.channel}-{message.ts}",
        type=f"{SLACK}.{what}",
        source=SLACK,
        repo=None,
        payload={
            "text": text,
            "user": message.user,
            "channel": message.channel,
            "ts": message.ts,
            "thread_ts": message.thread_ts,
        },
        priority=Priority.NORMAL,
        created_at=now,
        status=EventStatus.PENDING,
    )
