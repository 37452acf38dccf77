"""Receive petitions of agents and decide about them. Equal requests in one assignment are one petition."""

from collections.abc import Collection
from datetime import date, datetime

import msgspec

from kingdom.bus.port import Transaction
from kingdom.court.documents import Assignment
from kingdom.court.package import FollowPolicy, GeneralPolicy
from kingdom.court.petitions.approval import request_approval
from kingdom.court.petitions.bodies import KINDS, WITH_COMMIT, AssignmentSubject, read_body
from kingdom.court.petitions.decision import (
    COUNTED,
    PETITIONS,
    GrantDecision,
    Petition,
    PetitionState,
    RefusalDecision,
    decide_petition,
    petition_id_of,
)
from kingdom.court.petitions.granting import ApprovalTerms, grant_petition, with_branches
from kingdom.court.petitions.records import petitions_of, read_petition, refuse_petition, save_petition
from kingdom.court.result_memory import stranger_of
from kingdom.court.streams import petitions_due
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.messages.answers import AgentPetitioned
from kingdom.workflow.model.run.workflow import Workflow


async def handle_petition(
    transaction: Transaction,
    root: Assignment,
    policy: GeneralPolicy,
    workflow: Workflow,
    request: AgentPetitioned,
    *,
    at: datetime,
    channel: str = "",
    today: date | None = None,
    unused_systems: Collection[str] = (),
    follow: FollowPolicy | None = None,
) -> Petition:
    """Store a petition of an agent, decide about it, and grant it if possible. A repeated request is the same petition.

    A petition may wait for a person, for earlier petitions, or for the checkpoint of its Work. See
    `grant_waiting_petitions`. A petition to one of the `unused_systems` is refused.
    A pull request is followed as `follow` says.
    """
    petition = _parse_petition(root, workflow.id, request, at, channel)
    record = await transaction.get(PETITIONS.name, petition.id)
    before = read_petition(record) if record else None
    earlier_ids = before.asked_as if before else ()
    request_ids = (*(each for each in earlier_ids if each != request.petition_id), request.petition_id)
    if before and (before.state in COUNTED or before.rejected):
        return await save_petition(transaction, msgspec.structs.replace(before, asked_as=request_ids), record)
    ahead = [each for each in await petitions_of(transaction, petition.root) if each.id != petition.id]
    number = max((each.number for each in ahead), default=0) + 1
    days = follow.days if follow else 0.0
    petition = msgspec.structs.replace(
        petition, asked_as=request_ids, number=number, follow_days=days, stranger=stranger_of(root, policy)
    )
    decision = _decide(petition, policy, ahead, unused_systems)
    if isinstance(decision, RefusalDecision):
        return await refuse_petition(transaction, petition, record, decision.reason)
    completed = await with_branches(transaction, petition, workflow)
    if isinstance(completed, RefusalDecision):
        return await refuse_petition(transaction, petition, record, completed.reason)
    terms = ApprovalTerms(policy=policy, channel=channel, today=today or at.date())
    allowed = await _with_decision(transaction, completed, decision, terms, at)
    granted = await grant_petition(transaction, allowed, record, workflow, ahead, terms)
    if granted.state is PetitionState.REQUESTED:
        # What the petition waits for may happen during this transaction, and then no other notice would follow.
        await transaction.publish(petitions_due(petition.id, petition.root))
    return granted


def _decide(
    petition: Petition, policy: GeneralPolicy, ahead: Collection[Petition], unused_systems: Collection[str]
) -> GrantDecision | RefusalDecision:
    """Decide about a petition. Refuse an invalid petition, and one to a system that the realm does not use."""
    if petition.reason:
        return RefusalDecision(petition.reason)
    decision = decide_petition(petition, policy, ahead)
    if isinstance(decision, GrantDecision) and (system := petition.system) in unused_systems:
        return RefusalDecision(f"this realm does not use {system}: set sentinel.{system} in kingdom.yaml")
    return decision


async def _with_decision(
    transaction: Transaction, petition: Petition, decision: GrantDecision, terms: ApprovalTerms, at: datetime
) -> Petition:
    """Return a petition with its deadline and allowed commands. Ask people if they must approve it."""
    petition = msgspec.structs.replace(petition, expires_at=at + decision.expires_after, commands=decision.commands)
    if petition.kind in WITH_COMMIT:
        # People are asked when the commit is known.
        return msgspec.structs.replace(petition, approval=decision.approval)
    if not decision.approval:
        return petition
    day = terms.today or at.date()
    return await request_approval(transaction, petition, terms.policy, at=at, channel=terms.channel, today=day)


def _parse_petition(
    root: Assignment, workflow_id: str, request: AgentPetitioned, at: datetime, channel: str
) -> Petition:
    """Parse a petition of an agent. If the petition is invalid, its `reason` says why."""
    kind, subject, body = request.kind, _subject(root, channel), dict(request.body)
    target, foreign, reason, work_id = "", False, "", ""
    if kind in KINDS:
        try:
            read = read_body(kind, request.body, subject)
            work_id = request.work_id if read.is_per_work else ""
            body, target, foreign = msgspec.to_builtins(read), read.target, not read.is_about(subject)
        except MalformedEvent as error:
            reason = str(error)
    return Petition(
        id=petition_id_of(root.root_id, kind, body, work_id),
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


def _subject(root: Assignment, channel: str) -> AssignmentSubject:
    number, ticket = root.payload.get("number"), root.payload.get("key")
    return AssignmentSubject(
        repo=root.repo or "",
        number=number if isinstance(number, int) else 0,
        ticket=ticket if isinstance(ticket, str) else "",
        channel=channel,
    )
