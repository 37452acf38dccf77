"""What people say in Slack: an answer to a question, a wish to the app, or nothing that concerns us."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kingdom.bus.port import Transaction
from kingdom.court.asks import AskStatus
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.envoy.answers import TEXT_MAX, Answer, Taken, find_ask, take_answer
from kingdom.court.envoy.records import ENVOY, Awaited, Thread, entries, forget
from kingdom.court.envoy.slack_words import Choice, plain
from kingdom.court.envoy.telling import SLACK
from kingdom.court.records import EVENTS, receive
from kingdom.court.sentinel.untrusted import clean

MENTION = "app_mention"
_MESSAGE = "message"
_DIRECT = "im"
# Everything else under the name of a message is a change of one, or a machine's.
_SPOKEN = frozenset({None, "file_share", "thread_broadcast"})
_NEEDED = ("channel", "user", "ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a person wrote."""

    kind: str
    channel: str
    user: str
    text: str
    ts: str
    thread_ts: str = ""
    direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clicked:
    """A button that a person clicked."""

    choice: Choice
    channel: str
    user: str
    ts: str
    thread_ts: str


def read_message(event: dict[str, Any]) -> Said | None:
    """Return what an event of Slack tells that a person wrote; None where it was no person, or nothing new."""
    if event.get("bot_id") or event.get("subtype") not in _SPOKEN or not all(map(event.get, _NEEDED)):
        return None
    words = {name: str(event.get(name) or "") for name in (*_NEEDED, "text", "thread_ts")}
    kind = MENTION if event.get("type") == MENTION else _MESSAGE
    return Said(kind=kind, direct=event.get("channel_type") == _DIRECT, **words)


async def hear(transaction: Transaction, said: Said, now: datetime) -> Taken:
    """Take what a person wrote for an answer, for a wish, or for nothing; the same words again change nothing."""
    text = clean(plain(said.text), TEXT_MAX)
    if said.thread_ts and said.thread_ts != said.ts and (task_id := await _asked_in(transaction, said)):
        answer = Answer(
            source=SLACK, task_id=task_id, text=text, person=said.user, at=said.ts, thread_ts=said.thread_ts
        )
        if await transaction.get(EVENTS.name, answer.event_id):
            return Taken(is_new=False)
        ask = await find_ask(transaction, task_id)
        if ask and ask.status is not AskStatus.ANSWERED:
            return await _take(transaction, answer, now)
    if said.kind != MENTION and not said.direct:
        return Taken(is_new=False, is_answer=False)
    return Taken(is_new=await receive(transaction, _wish(said, text, now), ENVOY), is_answer=False)


async def hear_click(transaction: Transaction, click: Clicked, now: datetime) -> Taken:
    """Take a click for an answer to the question that its button stands under."""
    chosen = click.choice
    answer = Answer(
        source=SLACK,
        task_id=chosen.task_id,
        text=chosen.choice,
        person=click.user,
        at=click.ts,
        thread_ts=click.thread_ts,
        asked_at=chosen.asked_at,
    )
    return await _take(transaction, answer, now)


async def _take(transaction: Transaction, answer: Answer, now: datetime) -> Taken:
    """Take an answer and, where it is one, forget the question that whoever heard it now ends."""
    taken = await take_answer(transaction, answer, now)
    return replace(taken, question=await forget(transaction, Awaited, answer.task_id)) if taken.is_new else taken


async def _asked_in(transaction: Transaction, said: Said) -> str:
    """Return the assignment whose thread this is."""
    threads = await entries(transaction, Thread)
    questions = await entries(transaction, Awaited)
    known: list[tuple[str, Thread | Awaited]] = [*threads.items(), *questions.items()]
    for task_id, entry in known:
        if (entry.channel, entry.thread_ts) == (said.channel, said.thread_ts):
            return task_id
    return ""


def _wish(said: Said, text: str, now: datetime) -> ExternalEvent:
    what = MENTION if said.kind == MENTION else "channel.message"
    return ExternalEvent(
        id=f"evt-{SLACK}-{said.kind}-{said.channel}-{said.ts}",
        type=f"{SLACK}.{what}",
        source=SLACK,
        repo=None,
        payload={
            "text": text,
            "user": said.user,
            "channel": said.channel,
            "ts": said.ts,
            "thread_ts": said.thread_ts,
        },
        priority=Priority.NORMAL,
        created_at=now,
        status=EventStatus.PENDING,
    )
