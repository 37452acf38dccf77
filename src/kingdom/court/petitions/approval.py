"""A person agrees to a petition first: asked like any question, under the id of the petition itself."""

from datetime import date, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.asks import APPROVE, NO_RUN, REJECT, Ask, AskStatus, ask_people, load_ask
from kingdom.court.package import Policy
from kingdom.court.petitions.decision import Petition
from kingdom.court.petitions.records import refuse, save
from kingdom.text import printable

# What may be long stands last.
_TEXTS = ("body", "text")


async def ask_person(
    transaction: Transaction, asked: Petition, policy: Policy, *, channel: str, today: date
) -> Petition:
    """Ask for approval of a petition that is stored next; returns it with the time that people have."""
    at = asked.created_at
    deadline = at + timedelta(hours=policy.ask_deadline_hours)
    due_at = min(deadline, asked.expires_at or deadline)
    ask = Ask(
        id=asked.id,
        task_id=asked.root,
        general=asked.general,
        workflow_id=NO_RUN,
        petition=asked.id,
        question=question_of(asked),
        choices=(APPROVE, REJECT),
        exact=True,
        people=policy.ask_people,
        asked_at=at,
        due_at=due_at,
    )
    await ask_people(transaction, ask, channel=channel, today=today)
    return msgspec.structs.replace(asked, approve_by=due_at)


async def heed_answer(transaction: Transaction, asked: Petition, record: Record) -> bool:
    """Do what a person answered about a petition, or what follows when time is up; False while that is open."""
    known = await load_ask(transaction, asked.id)
    if known and known[1].status is AskStatus.OPEN:
        return False
    if known is None or known[1].status is AskStatus.EXPIRED:
        await refuse(transaction, asked, record, "nobody approved it in time")
        return True
    ask = known[1]
    person = ask.answered_by or "somebody"
    decided = msgspec.structs.replace(asked, decided_by=person, decided_at=utc_now())
    if ask.chosen(ask.answer) == APPROVE:
        await save(transaction, decided, record)
    else:
        rejected = msgspec.structs.replace(decided, rejected=True)
        await refuse(transaction, rejected, record, f"{person} rejected it")
    return True


def question_of(asked: Petition) -> str:
    """Return the question to a person: who asks, for what, where, and every field of the petition.

    Nothing is left out, and nothing in it can hide: what cannot be seen is written out, and lines of a value stand
    further right than the names of values.
    """
    values = sorted(((name, value) for name, value in asked.body.items() if value), key=lambda one: one[0] in _TEXTS)
    said = "\n".join(f"{name}: {printable(str(value))}".replace("\n", "\n    ") for name, value in values)
    return f"May {asked.general} do this ({asked.kind} on {asked.target})?\n{said}"
