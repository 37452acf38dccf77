"""The result of a course until a pull request is merged, and what must be true of it after any crash."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.court.judge import judge_leftovers, read_counts
from bench.court.until_merged import ANSWERS, COST, MERGED_TEXT, REVIEWER, FollowedPull
from bench.crash_sweep.ending import end_leftover_processes, locks_of
from bench.crash_sweep.merged.roles import MergedOutcome, opened_court
from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import Point
from kingdom.court.followups.records import Followup

_ROUNDS = {"review": 1, "checks": 1, "conflicts": 1}
_OURS = "kingdom-bot"
# How often each effect happens on GitHub. A summary is written once and then edited.
_EFFECTS = {
    "POST git ref": 1,
    "POST pull request": 1,
    "mutation updateRefs": sum(_ROUNDS.values()),
    "POST review comment reply": len(ANSWERS),
    "POST issue comment": 1,
    "PATCH issue comment": sum(_ROUNDS.values()) - 1,
}
_CENT_OF_A_CENT = 1e-4
# GitHub reports all changes between two polls in one notification, so the number of notifications depends on the time.
_NOTIFICATION = "github.notification."


class MergedEnding(msgspec.Struct, frozen=True, kw_only=True, tag="merged"):
    """The result of a course. `effects` counts our calls on GitHub, and `pushed` are the commits that we pushed.

    `answers` are our replies by the comment that they answer, `lost` the commits of other people that the base branch
    lacks at the end, `events` the types of all events except notifications, and `tasks` the type and status of all
    assignments.
    """

    followup: Followup
    effects: dict[str, int]
    pushed: list[str]
    asked: list[int]
    answers: list[tuple[int, str]]
    summary: str
    text: str
    lost: list[str]
    events: dict[str, int]
    tasks: list[str]
    leftovers: list[str]
    steps_again: int = 0

    @property
    def cost_usd(self) -> float:
        """Return the cost of all rounds."""
        return self.followup.cost_usd


async def read_merged_ending(stage: Stage) -> MergedEnding:
    """Read the result after the roles have ended. The stand-ins still run."""
    outcome = msgspec.json.decode(stage.outcome.read_bytes(), type=MergedOutcome)
    async with opened_court(stage) as (processes, bus):
        pull = FollowedPull(processes, bus, outcome.number)
        counts = await read_counts(processes)
        state, calls = await processes.look("github", "state"), await processes.look("github", "calls")
        return MergedEnding(
            followup=await pull.followup(),
            effects=dict(Counter(call["call"] for call in calls if call["call"] in _EFFECTS)),
            pushed=[call["refUpdates"][0]["afterOid"] for call in calls if call["call"] == "mutation updateRefs"],
            asked=[each["id"] for each in state["review_comments"] if each["user"] == REVIEWER],
            answers=[
                (each["in_reply_to"], _first_line(each)) for each in state["review_comments"] if each["user"] == _OURS
            ],
            summary="; ".join(_first_line(each) for each in state["comments"]),
            text=pull.show("text", "main"),
            lost=list(_lost(pull, outcome.foreign)),
            events=dict(Counter(event.type for event in counts.events if not event.type.startswith(_NOTIFICATION))),
            tasks=sorted(f"{task.type} {task.status}" for task in counts.assignments),
            leftovers=[
                *judge_leftovers(counts, []),
                *end_leftover_processes(stage.directory),
                *locks_of(stage),
            ],
        )


def judge_merged(reference: MergedEnding, ending: MergedEnding, _points: Sequence[Point] = ()) -> list[str]:
    """Describe what is wrong with the result of a course in which roles crashed at these points."""
    return [*ending.leftovers, *_check_followup(ending), *_check_effects(ending), *_check_same(reference, ending)]


def _check_followup(ending: MergedEnding) -> Iterator[str]:
    followup = ending.followup
    if (followup.state, followup.reason) != ("ended", "it was merged"):
        yield f"the followup is {followup.state}: {followup.reason}"
    if dict(followup.rounds) != _ROUNDS:
        yield f"the rounds are {dict(followup.rounds)} instead of {_ROUNDS}"
    if abs(followup.cost_usd - COST * sum(_ROUNDS.values())) > _CENT_OF_A_CENT:
        yield f"the rounds have cost ${followup.cost_usd:.4f}"


def _check_effects(ending: MergedEnding) -> Iterator[str]:
    for effect, wanted in _EFFECTS.items():
        if (found := ending.effects.get(effect, 0)) != wanted:
            yield f"{effect} happened {found} times instead of {wanted}"
    if len(set(ending.pushed)) != len(ending.pushed):
        yield f"a commit was pushed twice: {ending.pushed}"
    if ending.pushed[-1:] != [ending.followup.head]:
        yield f"the followup is at {ending.followup.head} instead of the last push"
    if sorted(ending.answers) != list(zip(ending.asked, ANSWERS, strict=False)):
        yield f"the threads {ending.asked} have the answers {ending.answers}"
    if ending.text != MERGED_TEXT.strip():
        yield f"the merged text is {ending.text!r}"
    for commit in ending.lost:
        yield f"the commit {commit} of another person is lost"


def _check_same(reference: MergedEnding, ending: MergedEnding) -> Iterator[str]:
    for name in ("events", "tasks", "summary"):
        expected, found = getattr(reference, name), getattr(ending, name)
        if expected != found:
            yield f"{name}: {found} instead of {expected}"


def _lost(pull: FollowedPull, commits: list[str]) -> Iterator[str]:
    contained = pull.git("rev-list", "main").split()
    yield from (commit for commit in commits if commit not in contained)


def _first_line(comment: dict[str, Any]) -> str:
    return str(comment["body"]).partition("\n")[0]
