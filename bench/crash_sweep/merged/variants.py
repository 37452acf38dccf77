"""Broken variants of the rounds and the effects of a followed pull request. The sweep must detect each of them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from bench.chaos.variants import replace as put_in_place
from bench.court.until_merged import REPO
from bench.crash_sweep import steps
from bench.crash_sweep.course import Variant
from bench.crash_sweep.steps import LABEL, Point
from kingdom.bus.effects.effect import Absent, Acked, CallResult, ReconcileResult
from kingdom.bus.port import Transaction
from kingdom.court.documents import Assignment
from kingdom.court.followups.records import Followup, find_followup, save_followup
from kingdom.court.followups.rules import StartRound, count_round
from kingdom.court.king import release, rounds
from kingdom.court.king.context import KingContext
from kingdom.court.petitions.bodies import GithubPush
from kingdom.court.petitions.github import effect, pushes, replies
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.effect import GithubPetitions


def count_round_later() -> None:
    """Count a round when it ends, not in the transaction that starts it."""
    count, end = count_round, rounds.end_round
    begun: dict[str, StartRound] = {}

    def remember(followup: Followup, start: StartRound) -> Followup:
        begun[followup.id] = start
        return msgspec.structs.replace(count(followup, start), rounds=followup.rounds)

    async def end_and_count(
        transaction: Transaction,
        task: Assignment,
        usd: float,
        now: datetime,
        context: KingContext,
        *,
        has_just_ended: bool,
    ) -> None:
        await end(transaction, task, usd, now, context, has_just_ended=has_just_ended)
        if has_just_ended and (start := begun.pop(task.subject, None)):
            found = await find_followup(transaction, task.subject)
            assert found
            counted = msgspec.structs.replace(found[1], rounds=count(found[1], start).rounds)
            await save_followup(transaction, counted, found[0])

    put_in_place(rounds, "count_round", remember)
    put_in_place(release, "end_round", end_and_count)


def push_again() -> None:
    """Push without looking whether the branch has our commit."""

    async def find(*_: object) -> ReconcileResult:
        return Absent()

    async def push(api: GithubApi, wanted: GithubPush) -> CallResult:
        branch = await pushes._read_branch(api, wanted)
        await pushes._move(api, wanted, branch)
        return Acked(pushes._response(branch, wanted))

    put_in_place(effect, "find_push", find)
    put_in_place(effect, "push_commits", push)


def reply_again() -> None:
    """Reply without looking for the mark of our reply."""

    async def find(*_: object) -> None:
        return None

    put_in_place(replies, "_find_comment", find)


def summarize_again() -> None:
    """Write a summary without looking for the mark of our petition."""

    async def find(*_: object, **_parameters: Any) -> ReconcileResult:
        return Absent()

    put_in_place(GithubPetitions, "_find_marked", find)


def _variant(break_it: Callable[[], None], role: str, step: str, number: int, finding: str) -> Variant:
    return Variant(break_it, (Point(role, step, number),), finding)


_ROUND_STARTS = (
    f"{steps.COMMIT_AFTER}{LABEL}nothing -> AssignmentGiven+MessageQueued+sequence current+quota current+task pending"
    "+waiting ended+event dispatched+followup open+message pending"
)
_SENT = f"{steps.REQUEST_AFTER}{LABEL}"
_REPO = f"/repos/{REPO}"
_REPLY, _EDIT = f"{_SENT}POST {_REPO}/pulls/N/comments/N/replies", f"{_SENT}PATCH {_REPO}/issues/comments/N"
MERGED_VARIANTS: Mapping[str, Variant] = {
    "count_round_later": _variant(count_round_later, "king", _ROUND_STARTS, 2, "the rounds are"),
    "push_again": _variant(push_again, "general", f"{_SENT}mutation updateRefs", 1, "mutation updateRefs happened 4"),
    "reply_again": _variant(reply_again, "general", _REPLY, 1, "POST review comment reply happened 4"),
    "summarize_again": _variant(summarize_again, "general", _EDIT, 1, "PATCH issue comment happened 3"),
}
