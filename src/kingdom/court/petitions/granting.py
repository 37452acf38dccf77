"""Grant the allowed petitions of an assignment in order, as soon as they can be performed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.documents import MessageType
from kingdom.court.package import GeneralPolicy
from kingdom.court.petitions.approval import apply_answer, request_approval
from kingdom.court.petitions.bodies import (
    AUTO_MERGE,
    PULL_REQUEST,
    WITH_COMMIT,
    GithubPullRequest,
    SlackMessage,
    stored_body,
)
from kingdom.court.petitions.commits import (
    OwnPullRequest,
    find_own_pull_request,
    find_run_branch,
    is_own_branch,
    protected_paths,
)
from kingdom.court.petitions.decision import TOO_LATE, Petition, PetitionState, RefusalDecision
from kingdom.court.petitions.records import petitions_with_records, refuse_petition, save_petition
from kingdom.court.questions import close_question
from kingdom.court.records import queue_message
from kingdom.court.streams import PetitionGranted, petition_granted
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORKFLOW

# How many protected paths a question shows.
_SHOWN_PATHS_MAX = 20
_SLACK_MESSAGE = "slack.message"
# These wait here until all earlier petitions have ended: the Envoy sends a message at once, and an earlier push decides
# which commit is merged.
_AFTER_EARLIER = (_SLACK_MESSAGE, AUTO_MERGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTerms:
    """What a question about a petition needs: the current policy, the channel, and the date of the court."""

    policy: GeneralPolicy = field(default_factory=GeneralPolicy)
    channel: str = ""
    today: date | None = None


_DEFAULT_TERMS = ApprovalTerms()


@dataclass(frozen=True, slots=True)
class _PetitionCommit:
    """The commit that a petition is about. `fields` are the branches that the court sets in its body.

    `commit` is empty until it is known. `changed_paths` is what the commit changed, or None if that is not known.
    """

    commit: str
    fields: dict[str, str]
    changed_paths: Sequence[str] | None


async def grant_waiting_petitions(
    transaction: Transaction, root_id: str, workflow: Workflow, terms: ApprovalTerms = _DEFAULT_TERMS
) -> None:
    """Grant the waiting petitions of an assignment in order. A petition waits as long as an earlier one waits."""
    for record, petition in await petitions_with_records(transaction, root_id):
        if petition.awaits_person:
            await apply_answer(transaction, petition, record)
    ahead: list[Petition] = []
    for record, petition in await petitions_with_records(transaction, root_id):
        waits = petition.state is PetitionState.REQUESTED
        ahead.append(await grant_petition(transaction, petition, record, workflow, ahead, terms) if waits else petition)


async def grant_petition(
    transaction: Transaction,
    petition: Petition,
    record: Record | None,
    workflow: Workflow,
    ahead: list[Petition],
    terms: ApprovalTerms = _DEFAULT_TERMS,
) -> Petition:
    """Grant a petition if its turn has come, and store its state."""
    if petition.expires_at and petition.expires_at <= utc_now():
        await close_question(transaction, petition.id)
        return await refuse_petition(transaction, petition, record, TOO_LATE)
    if petition.awaits_person or any(other.state is PetitionState.REQUESTED for other in ahead):
        return await save_petition(transaction, petition, record)
    if petition.kind in _AFTER_EARLIER and any(other.state is PetitionState.GRANTED for other in ahead):
        return await save_petition(transaction, petition, record)
    if petition.kind == _SLACK_MESSAGE:
        return await _queue_slack_message(transaction, petition, record, terms.today)
    if petition.kind in WITH_COMMIT:
        return await _grant_commit(transaction, petition, record, workflow, terms)
    return await _publish_granted(transaction, petition, record)


async def with_branches(transaction: Transaction, petition: Petition, workflow: Workflow) -> Petition | RefusalDecision:
    """Add the branches to a petition about a commit. Refuse it if there can never be one."""
    if petition.kind not in WITH_COMMIT:
        return petition
    found = await _find_commit(transaction, petition, workflow)
    if isinstance(found, RefusalDecision):
        return found
    return msgspec.structs.replace(petition, body={**petition.body, **found.fields})


async def _grant_commit(
    transaction: Transaction, petition: Petition, record: Record | None, workflow: Workflow, terms: ApprovalTerms
) -> Petition:
    """Grant a petition about a commit. It waits until the commit is known and approved."""
    found = await _find_commit(transaction, petition, workflow)
    if isinstance(found, RefusalDecision):
        return await refuse_petition(transaction, petition, record, found.reason)
    if found.commit:
        is_approved = petition.decided_by and petition.body["head_sha"] == found.commit
        body = {**petition.body, **found.fields, "head_sha": found.commit}
        petition = msgspec.structs.replace(petition, body=body)
        why_asked = _approval_reason(petition, found, terms.policy)
        if (petition.approval or why_asked) and not is_approved:
            return await _ask(transaction, msgspec.structs.replace(petition, approval_reason=why_asked), record, terms)
        return await _publish_granted(transaction, petition, record)
    if workflow.status in WORKFLOW.final:
        return await refuse_petition(transaction, petition, record, "the run ended without a checkpoint for it")
    return await save_petition(transaction, petition, record)


async def _ask(transaction: Transaction, petition: Petition, record: Record | None, terms: ApprovalTerms) -> Petition:
    """Ask people to approve a commit. Their answer holds for this commit only."""
    now = utc_now()
    asked = await request_approval(
        transaction, petition, terms.policy, at=now, channel=terms.channel, today=terms.today or now.date()
    )
    return await save_petition(transaction, asked, record)


def _approval_reason(petition: Petition, found: _PetitionCommit, policy: GeneralPolicy) -> str:
    """Return why a person must approve a commit even if the rule does not require it, or ""."""
    if petition.stranger:
        # CI runs the commit with secrets.
        return f"{petition.stranger}, who is not in policy.result_people, caused this run"
    if not policy.protected_paths:
        return ""
    if found.changed_paths is None:
        return "its changed files are too many to check, or not known"
    paths = protected_paths(found.changed_paths, policy.protected_paths)
    more = f" and {len(paths) - _SHOWN_PATHS_MAX} more" if len(paths) > _SHOWN_PATHS_MAX else ""
    return f"it changes {', '.join(paths[:_SHOWN_PATHS_MAX])}{more}" if paths else ""


async def _find_commit(
    transaction: Transaction, petition: Petition, workflow: Workflow
) -> _PetitionCommit | RefusalDecision:
    """Return the commit that a petition is about, or why there can never be one."""
    repo = str(petition.body["repo"])
    if petition.kind == AUTO_MERGE:
        merged = await _own_pull_request(transaction, petition)
        # The files were checked when the commit was pushed.
        return merged if isinstance(merged, RefusalDecision) else _PetitionCommit(merged.head, {}, ())
    branch = await find_run_branch(transaction, workflow, repo, petition.asked_as)
    if branch is None:
        return RefusalDecision(f"the run has no checkout of {repo}")
    if petition.kind == PULL_REQUEST:
        if not is_own_branch(branch.name, workflow.id):
            reason = f"{branch.name} is not a branch of this run, and only branches of the run are pushed"
            return RefusalDecision(reason)
        base = stored_body(GithubPullRequest, petition.body).base or branch.base
        return _PetitionCommit(branch.commit, {"head": branch.name, "base": base}, branch.changed_paths)
    own = await _own_pull_request(transaction, petition)
    if isinstance(own, RefusalDecision):
        return own
    return _PetitionCommit(branch.commit, {"branch": own.branch, "before": own.head}, branch.changed_paths)


async def _own_pull_request(transaction: Transaction, petition: Petition) -> OwnPullRequest | RefusalDecision:
    repo, number = petition.body["repo"], petition.body["number"]
    own = await find_own_pull_request(transaction, petition.root, repo, number)
    use = "merged" if petition.kind == AUTO_MERGE else "pushed to"
    return own or RefusalDecision(
        f"{petition.target} is not a pull request that this assignment opened or follows, and only these are {use}"
    )


async def _publish_granted(transaction: Transaction, petition: Petition, record: Record | None) -> Petition:
    """Store a granted petition, and publish it to the system that performs it."""
    granted = msgspec.structs.replace(petition, state=PetitionState.GRANTED, granted_at=utc_now())
    await save_petition(transaction, granted, record)
    snapshot = PetitionGranted(
        petition_id=granted.id,
        assignment_id=granted.root,
        kind=granted.kind,
        body=granted.body,
        key=granted.key,
        created_at=granted.created_at,
        expires_at=granted.expires_at,
        commands=granted.commands,
    )
    await transaction.publish(petition_granted(snapshot))
    return granted


async def _queue_slack_message(
    transaction: Transaction, petition: Petition, record: Record | None, today: date | None
) -> Petition:
    """Queue the message for the Envoy."""
    body, now = stored_body(SlackMessage, petition.body), utc_now()
    message = await queue_message(
        transaction,
        MessageType.NOTIFICATION,
        body.text,
        channel=body.channel,
        thread=petition.root,
        today=today or now.date(),
        context={"task_id": petition.root, "general": petition.general, "petition_id": petition.id},
    )
    answered = msgspec.structs.replace(
        petition, state=PetitionState.PERFORMED, ended_at=now, response={"message_id": message.id}
    )
    return await save_petition(transaction, answered, record)
