"""Remind people of old questions once, and warn them once. Clean up closed questions."""

from datetime import datetime, timedelta
from functools import partial
from textwrap import shorten
from zoneinfo import ZoneInfo

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.court.documents import MessageType, Urgency
from kingdom.court.envoy.answers import QUESTION_OVER, describe_end
from kingdom.court.envoy.messenger import Messenger
from kingdom.court.envoy.records import MessageThread, ShownQuestion, load_entries, remove_entry
from kingdom.court.envoy.sending import THREAD_TS
from kingdom.court.questions import QUESTIONS, WARNED_AFTER, HumanQuestion, QuestionStatus, load_question, save_question
from kingdom.court.records import ASSIGNMENTS, queue_message
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

_QUESTIONS_LIMIT = 50
# How many characters of a question a reminder shows. The thread shows the complete question.
_SHOWN_MAX = 1500
# A closed question of this age is removed even if its end could not be shown in its thread. A thread of this age is
# removed if its assignment is no longer stored.
_REMOVED_AFTER = timedelta(days=1)
_log = structlog.get_logger("kingdom.court")


async def send_reminders(transaction: Transaction, now: datetime, channel: str, zone: ZoneInfo) -> int:
    """Queue reminders of old questions, and return how many. The King handles questions past their deadline."""
    due = await transaction.find(
        RecordQuery(kind=QUESTIONS.name, state=QuestionStatus.OPEN, due_by=now, limit=_QUESTIONS_LIMIT)
    )
    reminded = 0
    for record in due:
        question = msgspec.convert(record.doc, HumanQuestion)
        # The query finds questions that need a reminder, and questions that are past their deadline `due_at`.
        if question.due_at <= now:
            continue
        late = now >= question.asked_at + WARNED_AFTER
        reminded_question = msgspec.structs.replace(
            question, reminded_at=now, warned_at=now if late else question.warned_at
        )
        await save_question(transaction, reminded_question, record)
        shown = (await load_entries(transaction, ShownQuestion)).get(question.id)
        place = {THREAD_TS: shown.thread_ts} if shown and shown.thread_ts else {}
        await queue_message(
            transaction,
            MessageType.THREAD_UPDATE,
            _reminder_text(question, now, late=late),
            channel=shown.channel if shown else channel,
            thread=question.thread,
            today=now.astimezone(zone).date(),
            context={"task_id": question.thread, "reminder": True, **place},
            urgency=Urgency.URGENT if late else Urgency.HIGH,
        )
        reminded += 1
    return reminded


async def clean_up_questions(bus: Bus, messenger: Messenger, now: datetime) -> None:
    """Show how each closed question ended and remove it. Remove threads whose assignment is no longer stored."""
    async with bus.transaction() as transaction:
        closed = await _closed_questions(transaction)
    for question_id, (question, ending) in closed.items():
        if question.message_ts:
            try:
                await messenger.end_question(question, ending)
            except Exception as error:  # noqa: BLE001 - the next round tries again
                log_failure(_log, "cannot show that a question is closed, trying again", error, question=question_id)
                if now - question.created_at < _REMOVED_AFTER:
                    continue
        await run_transaction(bus, partial(_forget_question, question_id=question_id, msg_id=question.msg_id))
    await run_transaction(bus, lambda transaction: _forget_threads(transaction, now))


async def _closed_questions(transaction: Transaction) -> dict[str, tuple[ShownQuestion, str]]:
    closed = {}
    for question_id, question in (await load_entries(transaction, ShownQuestion)).items():
        found = await load_question(transaction, question_id)
        if found is None or found[1].status is not QuestionStatus.OPEN:
            closed[question_id] = (question, describe_end(found[1]) if found else QUESTION_OVER)
    return closed


async def _forget_question(transaction: Transaction, question_id: str, msg_id: str) -> None:
    question = (await load_entries(transaction, ShownQuestion)).get(question_id)
    # A newer question may have replaced it.
    if question and question.msg_id == msg_id:
        await remove_entry(transaction, ShownQuestion, question_id)


async def _forget_threads(transaction: Transaction, now: datetime) -> None:
    for assignment_id, thread in (await load_entries(transaction, MessageThread)).items():
        is_old = now - thread.created_at >= _REMOVED_AFTER
        # While the assignment is stored, its last message may still be on its way to the thread.
        if is_old and await transaction.get(ASSIGNMENTS.name, assignment_id) is None:
            await remove_entry(transaction, MessageThread, assignment_id)


def _reminder_text(question: HumanQuestion, now: datetime, *, late: bool) -> str:
    days = (now - question.asked_at).days
    since = f"{days} days" if days > 1 else "a day"
    begin = "No answer for" if late else "A question has waited for"
    asked = shorten(question.text, _SHOWN_MAX, placeholder="…")
    return f"{begin} {since}: {asked}\nWithout an answer by {question.due_at.isoformat()}, {_what_follows(question)}."


def _what_follows(question: HumanQuestion) -> str:
    """Return what happens if no answer arrives in time."""
    if question.default:
        return f"the answer is {question.default!r}"
    if question.petition:
        return "the petition is refused"
    return "no other round starts" if question.followup else "the work fails"
