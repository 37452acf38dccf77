"""Ask people to approve a petition. The question has the id of the petition."""

from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.package import GeneralPolicy
from kingdom.court.petitions.decision import Petition
from kingdom.court.petitions.records import refuse_petition, save_petition
from kingdom.court.questions import (
    APPROVE,
    REJECT,
    WITHOUT_RUN,
    HumanQuestion,
    QuestionStatus,
    ask_people,
    load_question,
)
from kingdom.text import printable

# These long fields are shown last.
_LONG_FIELDS = ("body", "text")


async def request_approval(
    transaction: Transaction, petition: Petition, policy: GeneralPolicy, *, at: datetime, channel: str, today: date
) -> Petition:
    """Ask people to approve a petition. Return the petition with the deadline, for the caller to store.

    A later question about the same petition replaces an earlier one and its answer.
    """
    deadline = at + timedelta(hours=policy.ask_deadline_hours)
    due_at = min(deadline, petition.expires_at or deadline)
    question = HumanQuestion(
        id=petition.id,
        assignment_id=petition.root,
        general=petition.general,
        workflow_id=WITHOUT_RUN,
        petition=petition.id,
        text=approval_question(petition),
        choices=(APPROVE, REJECT),
        exact=True,
        people=policy.ask_people,
        asked_at=at,
        due_at=due_at,
    )
    await ask_people(transaction, question, channel=channel, today=today)
    return msgspec.structs.replace(petition, approve_by=due_at, decided_by="", decided_at=None)


async def apply_answer(transaction: Transaction, petition: Petition, record: Record) -> bool:
    """Apply a person's answer to a petition. Without an answer in time, refuse the petition.

    Return False while the question is open.
    """
    known = await load_question(transaction, petition.id)
    if known and known[1].status is QuestionStatus.OPEN:
        return False
    if known is None or known[1].status is QuestionStatus.EXPIRED:
        await refuse_petition(transaction, petition, record, "no approval in time")
        return True
    question = known[1]
    person = question.answered_by or "a person"
    decided = msgspec.structs.replace(petition, decided_by=person, decided_at=utc_now())
    if question.matching_choice(question.answer) == APPROVE:
        await save_petition(transaction, decided, record)
    else:
        rejected = msgspec.structs.replace(decided, rejected=True)
        await refuse_petition(transaction, rejected, record, f"{person} rejected it")
    return True


def approval_question(petition: Petition) -> str:
    """Return the question to a person: who requests what, where, and every field that has a value.

    Nothing is hidden: invisible characters are escaped, and the lines of a value are indented, so a value cannot look
    like another field.
    """
    values = sorted(
        ((name, value) for name, value in petition.body.items() if value), key=lambda one: one[0] in _LONG_FIELDS
    )
    details = "\n".join(f"{name}: {printable(_text_of(value))}".replace("\n", "\n    ") for name, value in values)
    reason = (
        f"\nA person must approve it, because {printable(petition.approval_reason)}" if petition.approval_reason else ""
    )
    question = f"May {petition.general} do this ({petition.kind} on {petition.target})?"
    return f"{question}{reason.replace(chr(10), chr(10) + '    ')}\n{details}"


def _text_of(value: Any) -> str:
    """Return a value as text. Each item of a list is JSON on a line of its own, so no item can look like two."""
    if not isinstance(value, list | tuple):
        return str(value)
    return "".join(f"\n{msgspec.json.encode(item).decode()}" for item in value)
