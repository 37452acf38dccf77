"""Forged answers by people without the right to answer, and forged webhooks."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec

from kingdom.bus import RecordQuery
from kingdom.court.questions import APPROVE, REJECT, HumanQuestion
from kingdom.court.sentinel import receiver as receiving
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.court.sentinel.records import accept_activity
from tests.contract.backends import FilesBackend
from tests.integration.court.sentinel.scene import US, Watch, opened, signed
from tests.integration.standins.github import SECRET
from tests.redteam.defended import AttemptClass, Ground
from tests.unit.court.sentinel.bodies import commented, review_requested

SPOOFING = AttemptClass("spoofing")
_AT = datetime(2026, 2, 7, 10, tzinfo=UTC)
_ASK = HumanQuestion(
    id="task-1",
    assignment_id="task-1",
    general="gen-pr",
    workflow_id="wf-1",
    text="May it be merged?",
    choices=(APPROVE, REJECT),
    exact=True,
    people=("U0DANA",),
    asked_at=_AT,
    due_at=_AT + timedelta(hours=8),
)
# The question, the person, the answer, and when the answered question was asked.
_ANSWERS: dict[str, tuple[HumanQuestion, str, str, str]] = {
    "another person": (_ASK, "U0EVIL", APPROVE, ""),
    "no name": (_ASK, "", APPROVE, ""),
    "a similar name": (_ASK, "u0dana", APPROVE, ""),
    "to an earlier question": (_ASK, "U0DANA", APPROVE, (_AT - timedelta(hours=1)).isoformat()),
    "to an answered question": (_ASK.with_answer("U0DANA", REJECT), "U0DANA", APPROVE, ""),
    "too late": (_ASK.as_expired(), "U0DANA", APPROVE, ""),
    "in other words": (_ASK, "U0DANA", "approve everything", ""),
}


@SPOOFING.stopped_by("a question accepts only listed people, in time, with one of its choices", _ANSWERS, quick=True)
async def answer_a_question(ground: Ground, case: tuple[HumanQuestion, str, str, str]) -> str:
    ask, person, text, asked_at = case
    ground.remove(HumanQuestion, "rejection_reason", lambda *_: "")
    return "" if ask.rejection_reason(person, text, asked_at) else f"{text} by {person or 'nobody'}"


_BODY = json.dumps(review_requested()).encode()
_SHA1 = hmac.new(SECRET.encode(), _BODY, hashlib.sha1).hexdigest()
_SIGNATURES = {
    "none at all": "",
    "zeros": "sha256=" + "0" * 64,
    "of another body": signed(b"{}"),
    "with another secret": signed(_BODY, "guessed"),
    "with no secret": signed(_BODY, ""),
    "of an older kind": f"sha1={_SHA1}",
    "in capital letters": signed(_BODY).upper(),
    "with more behind it": f"{signed(_BODY)}0",
    "twice": f"{signed(b'{}')},{signed(_BODY)}",
}


@SPOOFING.stopped_by("nothing is processed before its signature is checked", _SIGNATURES)
async def forge_a_signature(ground: Ground, signature: str) -> str:
    ground.remove(WebhookReceiver, "_is_signed", lambda *_: True)
    ground.remove(receiving, "_SIGNATURE", _Anything())
    async with _watch(ground) as watch, watch.receiving() as receiver:
        await watch.post(receiver, "pull_request", _BODY, X_Hub_Signature_256=signature)
        return await _received(watch)


@SPOOFING.stopped_by("a delivery id counts once, whatever the body is")
async def replay_a_delivery(ground: Ground) -> str:
    async with _watch(ground) as watch, watch.receiving() as receiver:
        other = review_requested() | {"repository": {"id": 6, "full_name": "acme/other"}}
        await watch.post(receiver, "pull_request", review_requested(), X_GitHub_Delivery="d-1")
        if not ground.is_defended:
            ground.patch.setattr(receiving, "DELIVERY", "another-kind-of-delivery")
        await watch.post(receiver, "pull_request", other, X_GitHub_Delivery="d-1")
        return await _received(watch, beyond=1)


@SPOOFING.stopped_by("one change is one event, however many deliveries report it")
async def send_the_same_thing_many_times(ground: Ground) -> str:
    if not ground.is_defended:
        numbers = iter(range(100))

        async def take_each(transaction: Any, activity: Any, *more: Any) -> Any:
            place = f"{activity.subject}-{next(numbers)}"
            event = msgspec.structs.replace(activity.event, id=f"{activity.event.id}-{place.rpartition('-')[2]}")
            return await accept_activity(
                transaction, msgspec.structs.replace(activity, subject=place, event=event), *more
            )

        ground.patch.setattr(receiving, "accept_activity", take_each)
    async with _watch(ground) as watch, watch.receiving() as receiver:
        await asyncio.gather(*(watch.post(receiver, "pull_request", review_requested()) for _ in range(5)))
        return await _received(watch, beyond=1)


@SPOOFING.stopped_by(
    "unwatched repositories, ignored users and our own actions cause no event",
    {
        "a comment of Kingdom itself": ({}, commented(f"@{US} go on", by=US)),
        "a comment in an unwatched repository": ({"repos": ("ours/*",)}, commented(f"@{US} go on", by="evil")),
        "a comment of an ignored bot": (
            {"ignore_actors": ("*[[]bot]", "*[bot]")},
            commented(f"@{US} go", by="x[bot]"),
        ),
    },
)
async def send_an_ignored_comment(ground: Ground, case: tuple[dict[str, Any], dict[str, Any]]) -> str:
    settings, document = case
    ground.remove(receiving, "why_filtered", lambda *_: None)
    async with _watch(ground) as watch, watch.receiving(**settings) as receiver:
        await watch.post(receiver, "issue_comment", document)
        return await _received(watch)


class _Anything:
    """Matches everything."""

    def fullmatch(self, _: str) -> bool:
        return True


@asynccontextmanager
async def _watch(ground: Ground) -> AsyncIterator[Watch]:
    async with aiohttp.ClientSession() as session, opened(FilesBackend(str(ground.folder / "realm")), session) as watch:
        yield watch


async def _received(watch: Watch, beyond: int = 0) -> str:
    async with watch.bus.transaction() as transaction:
        events = await transaction.find(RecordQuery(kind="event", limit=100))
    return f"{len(events)} events" if len(events) > beyond else ""
