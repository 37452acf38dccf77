"""What waits for people: questions and petitions, and the answers to them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.access.acts import act_in_transaction
from kingdom.actions.listings import list_records
from kingdom.actions.petitions import to_listed_petition, to_petition_details, with_left_behind
from kingdom.actions.questions import answer_question, digest_of, read_inbox
from kingdom.bus.port import Transaction
from kingdom.court.envoy.answers import PersonAnswer, find_question
from kingdom.court.petitions.decision import PETITIONS, Petition, PetitionState
from kingdom.court.petitions.records import read_petition
from kingdom.court.questions import APPROVE, REJECT, HumanQuestion
from kingdom.errors import MalformedRequest, NotFound, Permanent
from kingdom.views.petitions import ListedPetition, PetitionDetails
from kingdom.views.questions import AnswerResult, OpenQuestion
from kingdom.web.route import ApiCall, Page, PageQuery, Text

_SOURCE = "web"
_Digest = Annotated[str, Meta(max_length=64)]


class PetitionsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which petitions to list; `task` is the id of their assignment, or of its first assignment if it was resumed."""

    state: PetitionState | None = None
    task: str = ""


class AnswerToQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer. `digest` is that of the question that the person saw; an answer to a petition needs it.

    With `words`, the text is free text, even if it resembles a choice.
    """

    text: Text
    digest: _Digest = ""
    words: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The digest of the question that the person saw."""

    digest: Annotated[str, Meta(min_length=1, max_length=64)]


async def list_questions(call: ApiCall) -> Page[OpenQuestion]:
    """List the questions that wait for a person. Each page is sorted by age, the oldest first."""
    query: PageQuery = call.query
    async with call.context.bus.transaction() as transaction:
        items, following = await read_inbox(transaction, after=query.after, limit=query.limit)
    return Page(items=[item.question for item in items], next=following)


async def list_petitions(call: ApiCall) -> Page[ListedPetition]:
    """List what agents asked for: what was done outside, when, where, and who approved it."""
    query: PetitionsQuery = call.query
    async with call.context.bus.transaction() as transaction:
        page = await list_records(
            transaction,
            PETITIONS,
            state=query.state,
            index="root" if query.task else None,
            value=query.task or None,
            after=query.after,
            limit=query.limit,
            descending=True,
        )
        found = await with_left_behind(transaction, page.read(Petition))
    return Page(items=[to_listed_petition(each, left_behind=left) for each, left in found], next=page.next)


async def show_petition(call: ApiCall) -> PetitionDetails:
    """Show a petition with its content."""
    async with call.context.bus.transaction() as transaction:
        record = await transaction.get(PETITIONS.name, call.path["id"])
        if record is None:
            raise NotFound(f"there is no petition {call.path['id']!r}: `kingdom petition list` shows all")
        [(petition, left_behind)] = await with_left_behind(transaction, [read_petition(record)])
    return to_petition_details(petition, left_behind=left_behind)


async def post_answer(call: ApiCall) -> Any:
    """Answer a question. If there are several answers, the first one counts."""
    given: AnswerToQuestion = call.body
    return await _answer(call, "answer", given.text, given.digest, words=given.words)


async def post_approve(call: ApiCall) -> Any:
    """Approve a petition. The digest proves that the person saw all of it."""
    return await _answer(call, "approve", APPROVE, call.body.digest, words=False)


async def post_reject(call: ApiCall) -> Any:
    """Reject a petition."""
    return await _answer(call, "reject", REJECT, call.body.digest, words=False)


async def _answer(call: ApiCall, verb: str, text: str, digest: str, *, words: bool) -> Any:
    question_id = call.path["id"]

    async def perform(transaction: Transaction) -> AnswerResult:
        ask, now = await find_question(transaction, question_id), call.context.clock()
        if ask is None or (verb != "answer" and not ask.petition):
            raise NotFound(f"{question_id} has no open question: `kingdom inbox` shows open questions")
        call.visitor.require_general(ask.general)
        _check_digest(ask, digest)
        given = PersonAnswer(
            source=_SOURCE,
            question_id=ask.id,
            text=text,
            person=call.visitor.name,
            at=f"{now.timestamp():.6f}",
            asked_at=ask.asked_at.isoformat() if digest else "",
        )
        return await answer_question(transaction, ask, given, now, words=words)

    return await act_in_transaction(call.context.bus, call.act(verb, question_id, "task"), perform)


def _check_digest(ask: HumanQuestion, digest: str) -> None:
    """Refuse an answer if the question is no longer the one that the person saw."""
    if ask.petition and not digest:
        raise MalformedRequest(f"{ask.id} is about a petition: send the digest of the question that the person saw")
    if digest and digest != digest_of(ask):
        raise Permanent(f"{ask.id} is no longer what was shown: read the question again before you answer")
