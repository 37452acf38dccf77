"""Followups in the store: a pull request that Kingdom opened and follows until it is merged or closed."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document, read_documents
from kingdom.court.documents import Assignment
from kingdom.court.followups.polls import PULL_POLLS, PullPollState, put_poll
from kingdom.court.questions import close_question
from kingdom.court.records import ENDED
from kingdom.errors import NotFound
from kingdom.workflow.lifecycle import keep_files

# How long an ended followup is stored.
_RETENTION = timedelta(days=30)


class FollowupState(StrEnum):
    """Whether a pull request is followed. In WAITING, no round begins until a person has answered a question."""

    OPEN = "open"
    WAITING = "waiting"
    ENDED = ENDED


class RoundReason(StrEnum):
    """Why a round of work on a pull request begins."""

    REVIEW = "review"
    CHECKS = "checks"
    CONFLICTS = "conflicts"


class FollowupMoment(StrEnum):
    """What happened to a followup, as the log names it after `followup.`."""

    STARTED = "started"
    ROUND = "round"
    ASKED = "asked"
    ANSWERED = "answered"
    ENDED = "ended"


class RoundEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the King's queue that waits for a round, and the reason of the round."""

    id: str
    reason: RoundReason


class Followup(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id", "waiting": "queue"}):
    """A followed pull request. `assignment_id` and `workflow_id` are those of the newest round.

    `opened_by` is the assignment that opened the pull request, `head` the last commit that Kingdom pushed, and
    `branch_head` the head of the branch that was last seen, or "" if none was. `failing` are the checks that failed
    before the last round about checks, and `tests` is how many tests each of them ran, if that is known. `rerun_head`
    is the last commit whose checks were run again, and `waiting` is what the next round is about. `cost_usd` is the
    cost of all rounds, and `granted_at_usd` the part of it that was spent when a person last granted more. `stranger`
    is who caused the run that opened the pull request, if the policy of the General does not name this person.
    """

    id: str
    repo: str
    number: int
    branch: str
    base: str
    general: str
    assignment_id: str
    workflow_id: str
    head: str
    created_at: datetime
    ends_at: datetime
    state: FollowupState = msgspec.field(default_factory=lambda: FollowupState.OPEN)
    reason: str = ""
    rounds: dict[RoundReason, int] = {}
    failing: tuple[str, ...] = ()
    tests: dict[str, int] = {}
    waiting: tuple[RoundEntry, ...] = ()
    cost_usd: float = 0.0
    # How often a person has granted the rounds and the budget of the policy again.
    grants: int = 0
    granted_at_usd: float = 0.0
    pushed_at: datetime | None = None
    ended_at: datetime | None = None
    opened_by: str = ""
    # The run that opened the pull request, and those of all rounds.
    runs: tuple[str, ...] = ()
    branch_head: str = ""
    stranger: str = ""
    rerun_head: str = ""

    @property
    def has_foreign_head(self) -> bool:
        """Return whether the branch has another head than the last commit that Kingdom pushed."""
        return self.branch_head not in ("", self.head)

    @property
    def is_over(self) -> bool:
        """Return whether the pull request is no longer followed."""
        return self.state is FollowupState.ENDED


FOLLOWUPS = RecordKind(
    name="followup",
    directories={state: f"state/followups/{state}" for state in FollowupState},
    final=frozenset({FollowupState.ENDED}),
    retention=_RETENTION,
    indexes=("opened_by", "general"),
)


def followup_id(repo: str, number: int) -> str:
    """Return the id of the followup of a pull request, such as acme/shop#7. GitHub names are case-insensitive."""
    return f"{repo.lower()}#{number}"


def read_followup(record: Record) -> Followup:
    """Return the followup in a record."""
    return read_document(record.doc, Followup)


async def find_followup(transaction: Transaction, followup: str) -> tuple[Record, Followup] | None:
    """Return a followup and its record by its id, or None."""
    record = await transaction.get(FOLLOWUPS.name, followup)
    return (record, read_followup(record)) if record else None


async def load_followup(transaction: Transaction, followup: str) -> tuple[Record, Followup]:
    """Return a followup and its record, or raise NotFound."""
    found = await find_followup(transaction, followup.lower())
    if found is None:
        raise NotFound(
            f"no pull request {followup!r} is followed: write OWNER/NAME#NUMBER, see `kingdom followup list --all`"
        )
    return found


async def followups_of(transaction: Transaction, root: Assignment) -> list[Followup]:
    """Return the followups of the pull requests that an assignment opened, or is a round of."""
    worked_on = await transaction.get(FOLLOWUPS.name, root.followup) if root.followup else None
    opened = await transaction.find(RecordQuery(kind=FOLLOWUPS.name, index="opened_by", value=root.id))
    return list(read_documents([*([worked_on] if worked_on else []), *opened], Followup))


async def save_followup(transaction: Transaction, followup: Followup, record: Record | None) -> Record:
    """Store a followup, and return its new record.

    The record is due when the time of the followup ends, or at once if the followup has ended and entries wait for it.
    """
    return await transaction.put(
        Record(
            kind=FOLLOWUPS.name,
            id=followup.id,
            version=record.version if record else 0,
            state=followup.state,
            indexed=_indexed(followup),
            due_at=_due_at(followup),
            doc=msgspec.to_builtins(followup),
        )
    )


def _indexed(followup: Followup) -> dict[str, str]:
    """Return the values of a followup in the indexes. By its General, it is found until it ends."""
    general = {} if followup.is_over else {"general": followup.general}
    return {"opened_by": followup.opened_by, **general}


def _due_at(followup: Followup) -> datetime | None:
    if not followup.is_over:
        return followup.ends_at
    return followup.ended_at if followup.waiting else None


async def follow_pull_request(transaction: Transaction, followup: Followup) -> None:
    """Start to follow a pull request, unless it is followed already."""
    known = await find_followup(transaction, followup.id)
    if known and not known[1].is_over:
        return
    followed = msgspec.structs.replace(followup, opened_by=followup.assignment_id, runs=(followup.workflow_id,))
    await save_followup(transaction, followed, known[0] if known else None)
    poll = await transaction.get(PULL_POLLS.name, followup.id)
    await put_poll(transaction, followup.id, poll, PullPollState(), followup.created_at)
    await log_followup(transaction, followup, FollowupMoment.STARTED, actor=followup.general)
    await _keep_files(transaction, followed, followup.ends_at, actor=followup.general)


async def record_push(transaction: Transaction, repo: str, number: int, head: str, at: datetime) -> None:
    """Store the commit that was pushed to the branch of a followed pull request. An ended followup stays ended."""
    known = await find_followup(transaction, followup_id(repo, number))
    if known:
        pushed = msgspec.structs.replace(known[1], head=head, branch_head=head, pushed_at=at)
        await save_followup(transaction, pushed, known[0])


async def record_branch_head(transaction: Transaction, followup: str, head: str) -> None:
    """Store the head of the branch that a poll of a followed pull request has found."""
    known = await find_followup(transaction, followup)
    if known and not known[1].is_over and head not in ("", known[1].branch_head):
        await save_followup(transaction, msgspec.structs.replace(known[1], branch_head=head), known[0])


async def end_followup(
    transaction: Transaction, record: Record, followup: Followup, reason: str, *, at: datetime, actor: str
) -> Followup:
    """End a followup with a reason. A followup that has ended does not change."""
    if followup.is_over:
        return followup
    if followup.state is FollowupState.WAITING:
        await close_question(transaction, followup.assignment_id)
    ended = msgspec.structs.replace(followup, state=FollowupState.ENDED, reason=reason, ended_at=at)
    await save_followup(transaction, ended, record)
    await log_followup(transaction, ended, FollowupMoment.ENDED, actor=actor, reason=reason)
    await _keep_files(transaction, ended, at, actor=actor)
    return ended


async def _keep_files(transaction: Transaction, followup: Followup, until: datetime, *, actor: str) -> None:
    """Keep the files of all runs of a followup until a time, or longer if a run opened other pull requests."""
    found = await transaction.find(RecordQuery(kind=FOLLOWUPS.name, index="opened_by", value=followup.opened_by))
    others = [other for other in read_documents(found, Followup) if other.id != followup.id]
    for run in followup.runs:
        shared = [other.ended_at or other.ends_at for other in others if run in other.runs]
        await keep_files(transaction, run, max([until, *shared]), actor=actor)


async def log_followup(
    transaction: Transaction, followup: Followup, what: FollowupMoment, *, actor: str, **more: Any
) -> None:
    """Log what happened to a followup, in the timeline of its newest round."""
    data = {"pull_request": followup.id, "task_id": followup.assignment_id, **more}
    await transaction.append(
        LogEntry(
            type=f"followup.{what}",
            actor=actor,
            data=data,
            aggregate_type="task",
            aggregate_id=followup.assignment_id,
        )
    )
