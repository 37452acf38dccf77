"""Questions that wait for long: people are reminded once and warned once; what is over is cleared away."""

from datetime import datetime, timedelta
from functools import partial
from textwrap import shorten
from zoneinfo import ZoneInfo

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.court.asks import ASKS, WARNED_AFTER, Ask, AskStatus, load_ask, save_ask
from kingdom.court.documents import MessageType, Urgency
from kingdom.court.envoy.answers import OVER, how_it_ended
from kingdom.court.envoy.place import Place
from kingdom.court.envoy.records import Awaited, Thread, entries, forget
from kingdom.court.records import ASSIGNMENTS, tell_people
from kingdom.workflow.records import change

_AT_ONCE = 50
# The question itself stands above, in the same thread.
_SHOWN_MAX = 1500
_LEFT_OVER_AFTER = timedelta(days=1)
_log = structlog.get_logger("kingdom.court")


async def remind(transaction: Transaction, now: datetime, channel: str, zone: ZoneInfo) -> int:
    """Tell people again of questions that wait for long; returns of how many. What is due for good the King decides."""
    due = await transaction.find(RecordQuery(kind=ASKS.name, state=AskStatus.OPEN, due_by=now, limit=_AT_ONCE))
    reminded = 0
    for record in due:
        ask = msgspec.convert(record.doc, Ask)
        if ask.due_at <= now:
            continue
        late = now >= ask.asked_at + WARNED_AFTER
        told = msgspec.structs.replace(ask, reminded_at=now, warned_at=now if late else ask.warned_at)
        await save_ask(transaction, told, record)
        await tell_people(
            transaction,
            MessageType.THREAD_UPDATE,
            _words(ask, now, late=late),
            channel=await _channel(transaction, ask, channel),
            thread=ask.thread,
            today=now.astimezone(zone).date(),
            context={"task_id": ask.thread, "reminder": True},
            urgency=Urgency.URGENT if late else Urgency.HIGH,
        )
        reminded += 1
    return reminded


async def clear_away(bus: Bus, place: Place, now: datetime) -> None:
    """Show under each question that is over how it ended, and forget it; forget threads that nobody needs."""
    async with bus.transaction() as transaction:
        over = await _questions_over(transaction)
    for task_id, (question, ending) in over.items():
        if question.message_ts:
            try:
                await place.end_question(question, ending)
            except Exception as error:  # noqa: BLE001 - whatever the place says, the next round tries again
                _log.warning("a question that is over still looks open", task=task_id, error=str(error))
                if now - question.created_at < _LEFT_OVER_AFTER:
                    continue
        await change(bus, partial(_forget_question, task_id=task_id, msg_id=question.msg_id))
    await change(bus, lambda transaction: _forget_threads(transaction, now))


async def _questions_over(transaction: Transaction) -> dict[str, tuple[Awaited, str]]:
    over = {}
    for task_id, question in (await entries(transaction, Awaited)).items():
        found = await load_ask(transaction, task_id)
        if found is None or found[1].status is not AskStatus.OPEN:
            over[task_id] = (question, how_it_ended(found[1]) if found else OVER)
    return over


async def _forget_question(transaction: Transaction, task_id: str, msg_id: str) -> None:
    question = (await entries(transaction, Awaited)).get(task_id)
    # A newer one may have taken its place.
    if question and question.msg_id == msg_id:
        await forget(transaction, Awaited, task_id)


async def _forget_threads(transaction: Transaction, now: datetime) -> None:
    for task_id, thread in (await entries(transaction, Thread)).items():
        is_old = now - thread.created_at >= _LEFT_OVER_AFTER
        # Of an assignment that has ended the last words may still be on their way into the thread.
        if is_old and await transaction.get(ASSIGNMENTS.name, task_id) is None:
            await forget(transaction, Thread, task_id)


async def _channel(transaction: Transaction, ask: Ask, otherwise: str) -> str:
    awaited = (await entries(transaction, Awaited)).get(ask.id)
    return awaited.channel if awaited else otherwise


def _words(ask: Ask, now: datetime, *, late: bool) -> str:
    days = (now - ask.asked_at).days
    since = f"{days} days" if days > 1 else "a day"
    otherwise = "then it is refused" if ask.petition else "then the work fails"
    after = f"then the answer is {ask.default!r}" if ask.default else otherwise
    begin = "Nobody has answered for" if late else "A question has waited for"
    asked = shorten(ask.question, _SHOWN_MAX, placeholder="…")
    return f"{begin} {since}: {asked}\nThere is time until {ask.due_at.isoformat()}; {after}."
