"""End petitions that were performed, that failed or are overdue, or whose assignment has ended."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.followups.records import Followup, follow_pull_request, followup_id, record_push
from kingdom.court.petitions.approval import apply_answer
from kingdom.court.petitions.bodies import PULL_REQUEST, PUSH, GithubPullRequest, stored_body
from kingdom.court.petitions.decision import PETITIONS, TOO_LATE, Petition, PetitionState
from kingdom.court.petitions.records import petitions_with_records, read_petition, refuse_petition, save_petition
from kingdom.court.questions import close_question
from kingdom.court.streams import petition_settled


async def settle_petition(
    transaction: Transaction,
    petition_id: str,
    state: PetitionState,
    *,
    reason: str = "",
    response: Mapping[str, Any] | None = None,
) -> None:
    """Store how a granted petition ended, and notify its General."""
    record = await transaction.get(PETITIONS.name, petition_id)
    if record is None:
        # The petition was deleted after its retention time, so nothing waits for it.
        return
    ended = msgspec.structs.replace(
        read_petition(record), state=state, reason=reason, response=dict(response or {}), unclear=False
    )
    await _save_settled(transaction, ended, record)
    number = ended.response.get("number")
    if ended.kind == PULL_REQUEST and ended.follow_days and isinstance(number, int):
        await _follow(transaction, ended, number)
    if ended.kind == PUSH and state is PetitionState.PERFORMED:
        body = ended.body
        await record_push(transaction, body["repo"], body["number"], body["head_sha"], utc_now())


async def withdraw_waiting_petitions(transaction: Transaction, root_id: str, reason: str) -> None:
    """Refuse the waiting petitions of an assignment that has ended."""
    for record, petition in await petitions_with_records(transaction, root_id):
        if petition.state is PetitionState.REQUESTED:
            await close_question(transaction, petition.id)
            await refuse_petition(transaction, petition, record, reason)


async def fail_overdue_petitions(transaction: Transaction, now: datetime, limit: int = 100) -> int:
    """End the petitions whose deadline has passed, and return their number.

    If the outcome of such a petition becomes known later, `settle_petition` still stores it.
    """
    overdue = await transaction.find(RecordQuery(kind=PETITIONS.name, due_by=now, limit=limit))
    for record in overdue:
        await _end_overdue(transaction, read_petition(record), record)
    return len(overdue)


async def _follow(transaction: Transaction, petition: Petition, number: int) -> None:
    """Follow the pull request that was opened for a petition."""
    wanted, now = stored_body(GithubPullRequest, petition.body), utc_now()
    followup = Followup(
        id=followup_id(wanted.repo, number),
        repo=wanted.repo,
        number=number,
        branch=wanted.head,
        base=wanted.base,
        general=petition.general,
        assignment_id=petition.root,
        workflow_id=petition.workflow_id,
        head=wanted.head_sha,
        created_at=now,
        pushed_at=now,
        ends_at=now + timedelta(days=petition.follow_days),
        stranger=petition.stranger,
    )
    await follow_pull_request(transaction, followup)


async def _end_overdue(transaction: Transaction, petition: Petition, record: Record) -> None:
    if petition.state is PetitionState.GRANTED:
        reason = "its outcome was still unknown at the deadline: `kingdom bus dead list` shows what is known"
        failed = msgspec.structs.replace(petition, state=PetitionState.FAILED, reason=reason, unclear=True)
        await _save_settled(transaction, failed, record)
        return
    if petition.awaits_person:
        await close_question(transaction, petition.id)
        # A person may have answered in time, and the answer is not applied yet.
        await apply_answer(transaction, petition, record)
    else:
        await refuse_petition(transaction, petition, record, TOO_LATE)
    await transaction.publish(petition_settled(petition.id, petition.root))


async def _save_settled(transaction: Transaction, ended: Petition, record: Record) -> None:
    await save_petition(transaction, msgspec.structs.replace(ended, ended_at=utc_now()), record)
    await transaction.publish(petition_settled(ended.id, ended.root))
