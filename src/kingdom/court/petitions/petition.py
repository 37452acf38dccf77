"""From what an agent asks for to what is done about it: stored, decided, and handed on to be performed."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Transaction
from kingdom.bus.record import Query, Record
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, MessageType
from kingdom.court.package import Policy
from kingdom.court.petitions.bodies import KINDS, GithubPullRequest, Origin, SlackMessage, read_body, stored_body
from kingdom.court.petitions.commits import branch_of
from kingdom.court.petitions.decision import (
    COUNTED,
    OPEN,
    PETITIONS,
    Petition,
    PetitionState,
    Refused,
    decide,
    id_of,
)
from kingdom.court.records import tell_people
from kingdom.court.streams import PetitionGranted, petition_granted, petition_settled
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.machine import WORKFLOW
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import each

# Longer than the bus goes on trying; then the assignment shall not wait any more.
_GIVEN_UP_AFTER = timedelta(hours=3)
_PULL_REQUEST = "github.pull_request"
_SLACK_MESSAGE = "slack.message"


async def petition(
    transaction: Transaction,
    root: Assignment,
    policy: Policy,
    workflow: Workflow,
    *,
    petition_id: str,
    kind: str,
    body: Mapping[str, Any],
    at: datetime,
    channel: str = "",
    today: date | None = None,
) -> Petition:
    """Store what an agent asks for, decide on it, and have it performed; what was asked for before is one with it.

    A pull request is granted once the Work that asks for it has a checkpoint: see `grant_waiting`.
    """
    asked = _asked(root, workflow.id, kind, body, at, channel)
    record = await transaction.get(PETITIONS.name, asked.id)
    before = _read(record) if record else None
    askers = (*(name for name in (before.asked_as if before else ()) if name != petition_id), petition_id)
    if before and before.state in COUNTED:
        return await _save(transaction, msgspec.structs.replace(before, asked_as=askers), record)
    asked = msgspec.structs.replace(asked, asked_as=askers)
    return await _judge(transaction, asked, record, policy, workflow, today or at.date())


async def grant_waiting(transaction: Transaction, root_id: str, workflow: Workflow) -> None:
    """Go on with the pull requests that wait for a checkpoint; a run that has ended leaves none behind."""
    for record in await _records(transaction, root_id):
        if record.state == PetitionState.REQUESTED:
            await _grant_pull_request(transaction, _read(record), record, workflow)


async def has_open_petitions(transaction: Transaction, root_id: str) -> bool:
    """Tell whether something is still to be done for an assignment."""
    return any(record.state in OPEN for record in await _records(transaction, root_id))


async def withdraw_waiting(transaction: Transaction, root_id: str, reason: str) -> None:
    """Refuse what waits for a checkpoint that will not come."""
    for record in await _records(transaction, root_id):
        if record.state == PetitionState.REQUESTED:
            await _refuse(transaction, _read(record), record, reason)


async def give_up_overdue(transaction: Transaction, now: datetime, limit: int = 100) -> int:
    """Let assignments go on whose petitions nobody could perform or clear up in time; returns how many there were.

    What the bus still finds out later is written down all the same.
    """
    overdue = await transaction.find(Query(kind=PETITIONS.name, due_by=now, limit=limit))
    for record in overdue:
        given_up = msgspec.structs.replace(
            _read(record),
            state=PetitionState.FAILED,
            reason="nobody could tell in time whether it was done: `kingdom bus dead list` shows what is known",
            unclear=True,
        )
        await _settled(transaction, given_up, record)
    return len(overdue)


async def settle(
    transaction: Transaction,
    petition_id: str,
    state: PetitionState,
    *,
    reason: str = "",
    response: Mapping[str, Any] | None = None,
) -> None:
    """Write down how a granted petition ended, and tell its General."""
    record = await transaction.get(PETITIONS.name, petition_id)
    if record is None:
        # Its retention has passed, and so has all that waited for it.
        return
    ended = msgspec.structs.replace(
        _read(record), state=state, reason=reason, response=dict(response or {}), unclear=False
    )
    await _settled(transaction, ended, record)


async def petitions_of(transaction: Transaction, root_id: str) -> list[Petition]:
    """Return all petitions of an assignment."""
    return [_read(record) for record in await _records(transaction, root_id)]


def _asked(
    root: Assignment, workflow_id: str, kind: str, raw: Mapping[str, Any], at: datetime, channel: str
) -> Petition:
    """Return a petition as an agent means it; one that nobody can read carries the reason."""
    origin, body, target, foreign, reason = _origin(root, channel), dict(raw), "", False, ""
    if kind in KINDS:
        try:
            read = read_body(kind, raw, origin)
            body, target, foreign = msgspec.to_builtins(read), read.target, not read.is_about(origin)
        except MalformedEvent as error:
            reason = str(error)
    return Petition(
        id=id_of(root.root_id, kind, body),
        root=root.root_id,
        general=root.target_general,
        workflow_id=workflow_id,
        kind=kind,
        body=body,
        target=target,
        foreign=foreign,
        reason=reason,
        created_at=at,
    )


def _origin(root: Assignment, channel: str) -> Origin:
    number, ticket = root.payload.get("number"), root.payload.get("key")
    return Origin(
        repo=root.repo or "",
        number=number if isinstance(number, int) else 0,
        ticket=ticket if isinstance(ticket, str) else "",
        channel=channel,
    )


async def _judge(
    transaction: Transaction,
    asked: Petition,
    record: Record | None,
    policy: Policy,
    workflow: Workflow,
    today: date,
) -> Petition:
    earlier = await petitions_of(transaction, asked.root)
    verdict = Refused(asked.reason) if asked.reason else decide(asked, policy, earlier)
    if isinstance(verdict, Refused):
        return await _refuse(transaction, asked, record, verdict.reason)
    if asked.kind == _SLACK_MESSAGE:
        return await _say(transaction, asked, record, today)
    if asked.kind == _PULL_REQUEST:
        return await _grant_pull_request(transaction, asked, record, workflow)
    return await _grant(transaction, asked, record)


async def _grant_pull_request(
    transaction: Transaction, asked: Petition, record: Record | None, workflow: Workflow
) -> Petition:
    """Grant a pull request of what the run has done, or let it wait until that is committed."""
    body = stored_body(GithubPullRequest, asked.body)
    branch = await branch_of(transaction, workflow, body.repo, asked.asked_as)
    if branch is None:
        return await _refuse(transaction, asked, record, f"the run has no checkout of {body.repo}")
    if branch.commit:
        ours = {"head": branch.name, "head_sha": branch.commit, "base": body.base or branch.base}
        return await _grant(transaction, msgspec.structs.replace(asked, body={**asked.body, **ours}), record)
    if workflow.status in WORKFLOW.final:
        return await _refuse(transaction, asked, record, "the run ended without a checkpoint to make it of")
    return await _save(transaction, asked, record)


async def _grant(transaction: Transaction, asked: Petition, record: Record | None) -> Petition:
    granted = msgspec.structs.replace(asked, state=PetitionState.GRANTED, granted_at=utc_now())
    await _save(transaction, granted, record)
    snapshot = PetitionGranted(
        petition_id=granted.id,
        task_id=granted.root,
        kind=granted.kind,
        body=granted.body,
        key=granted.key,
        created_at=granted.created_at,
    )
    await transaction.publish(petition_granted(snapshot))
    return granted


async def _settled(transaction: Transaction, ended: Petition, record: Record) -> None:
    await _save(transaction, ended, record)
    await transaction.publish(petition_settled(ended.id, ended.root))


async def _refuse(transaction: Transaction, asked: Petition, record: Record | None, reason: str) -> Petition:
    refused = msgspec.structs.replace(asked, state=PetitionState.REFUSED, reason=reason)
    return await _save(transaction, refused, record)


async def _say(transaction: Transaction, asked: Petition, record: Record | None, today: date) -> Petition:
    """Leave a message to the Envoy, who sees to it that people get it once."""
    body = stored_body(SlackMessage, asked.body)
    message = await tell_people(
        transaction,
        MessageType.NOTIFICATION,
        body.text,
        channel=body.channel,
        thread=asked.root,
        today=today,
        context={"task_id": asked.root, "general": asked.general, "petition_id": asked.id},
    )
    said = msgspec.structs.replace(asked, state=PetitionState.PERFORMED, response={"message_id": message.id})
    return await _save(transaction, said, record)


async def _records(transaction: Transaction, root_id: str) -> list[Record]:
    return [record async for record in each(transaction, Query(kind=PETITIONS.name, owner=root_id))]


def _read(record: Record) -> Petition:
    return msgspec.convert(record.doc, Petition)


async def _save(transaction: Transaction, petition: Petition, record: Record | None) -> Petition:
    """Store a petition, and log it where it has come further."""
    granted_at = petition.granted_at if petition.state is PetitionState.GRANTED else None
    await transaction.put(
        Record(
            kind=PETITIONS.name,
            id=petition.id,
            version=record.version if record else 0,
            state=petition.state,
            owner=petition.root,
            due_at=granted_at + _GIVEN_UP_AFTER if granted_at else None,
            doc=msgspec.to_builtins(petition),
        )
    )
    if record is None or record.state != petition.state:
        data = {"petition_id": petition.id, "task_id": petition.root, "kind": petition.kind, "target": petition.target}
        entry = LogEntry(
            type=f"petition.{petition.state}",
            actor=petition.general,
            data=data | ({"reason": petition.reason} if petition.reason else {}),
            aggregate_type="task",
            aggregate_id=petition.root,
        )
        await transaction.append(entry)
    return petition
