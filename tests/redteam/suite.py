"""All that is attempted, and what became of it."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kingdom.soldiers.sandbox.sandbox import Profile
from tests.redteam.attempts import ATTEMPTS, NEVER_OUTSIDE, Attempt
from tests.redteam.house import opened
from tests.redteam.leavings import LEAVINGS
from tests.redteam.words import WORDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt."""

    by: str
    attempt: str
    succeeded: bool
    stopped_by: str
    evidence: str


async def from_the_sandbox(attempts: Iterable[Attempt], profile: Profile) -> AsyncIterator[tuple[Attempt, Outcome]]:
    """Let a hostile agent try these, each in a house of its own; without a sandbox only what harms nobody."""
    for attempt in attempts:
        if profile is Profile.OFF and attempt.trick in NEVER_OUTSIDE:
            continue
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), profile) as house:
                tried = await house.attempt(attempt.trick)
        yield attempt, Outcome("agent", attempt.name, tried.succeeded, attempt.stopped_by, tried.evidence)


async def from_what_is_left() -> AsyncIterator[Outcome]:
    """Let the house do its work on what a hostile agent or repository has left."""
    for lay, guard in LEAVINGS:
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), Profile.STRICT) as house:
                won = await lay(house)
        yield Outcome("repository", _in_words(lay), bool(won), guard, won)


def from_words() -> list[Outcome]:
    """Try what hostile words can do."""
    return [Outcome("words", _in_words(say), bool(won := say()), guard, won) for say, guard in WORDS]


async def all_of_it(profile: Profile) -> list[Outcome]:
    """Try everything; what is no matter of the sandbox does not depend on the profile."""
    agent = [outcome async for _, outcome in from_the_sandbox(ATTEMPTS, profile)]
    return [*agent, *[outcome async for outcome in from_what_is_left()], *from_words()]


def as_table(outcomes: Collection[Outcome]) -> str:
    """Return the outcomes for people."""
    lines = [
        f"{'SUCCEEDED' if each.succeeded else 'failed':9}  {each.by:10}  {each.attempt:52}  {each.stopped_by}"
        for each in outcomes
    ]
    won = sum(each.succeeded for each in outcomes)
    return "\n".join([*lines, f"{len(outcomes)} attempts, {won} succeeded"])


def write_json(outcomes: Collection[Outcome], file: Path) -> None:
    """Write the outcomes for programs."""
    file.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")


def _in_words(attempt: Callable[..., object]) -> str:
    return attempt.__name__.replace("_", " ")
