"""Run all attempts and collect their outcomes."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from tests.redteam.attempts import ATTEMPTS, NEVER_OUTSIDE, Attempt
from tests.redteam.committing import COMMITTING
from tests.redteam.defended import DefendedAttempt, Ground
from tests.redteam.exhaustion import EXHAUSTION
from tests.redteam.exits import EXITS
from tests.redteam.hostile_checkout import CHECKOUT
from tests.redteam.identity import IDENTITY
from tests.redteam.inside_policy import PETITIONS
from tests.redteam.leavings import LEAVINGS
from tests.redteam.racing import RACING
from tests.redteam.spending import SPENDING
from tests.redteam.spoofing import SPOOFING
from tests.redteam.target_host import opened
from tests.redteam.words import WORDS

AT_LEAST = 160
CLASSES = (RACING, COMMITTING, CHECKOUT, IDENTITY, PETITIONS, SPENDING, EXITS, SPOOFING, EXHAUSTION)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt."""

    by: str
    attempt: str
    succeeded: bool
    stopped_by: str
    evidence: str


async def from_the_sandbox(
    attempts: Iterable[Attempt], profile: SandboxProfile
) -> AsyncIterator[tuple[Attempt, Outcome]]:
    """Let a hostile agent try these, each on its own host; without a sandbox skip the harmful ones."""
    for attempt in attempts:
        if profile is SandboxProfile.OFF and attempt.trick in NEVER_OUTSIDE:
            continue
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), profile) as host:
                tried = await host.attempt(attempt.trick)
        yield attempt, Outcome("agent", attempt.name, tried.succeeded, attempt.stopped_by, tried.evidence)


async def from_what_is_left() -> AsyncIterator[Outcome]:
    """Let the host work on files that a hostile agent or repository has left."""
    for lay, guard in LEAVINGS:
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), SandboxProfile.STRICT) as host:
                won = await lay(host)
        yield Outcome("repository", _in_words(lay), bool(won), guard, won)


def from_words() -> list[Outcome]:
    """Try the attacks by hostile text."""
    return [Outcome("words", _in_words(say), bool(won := say()), guard, won) for say, guard in WORDS]


async def from_classes(attempts: Iterable[DefendedAttempt], *, is_defended: bool) -> AsyncIterator[Outcome]:
    """Try these, each in its own folder, with the defense or without it."""
    for attempt in attempts:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            won = await attempt.act(Ground(Path(folder).resolve(), is_defended, patch))
        yield Outcome(attempt.by, attempt.name, bool(won), attempt.stopped_by, " ".join(won.split())[:200])


def of_classes() -> list[DefendedAttempt]:
    """Return the attempts of all classes that can be tried without their defense."""
    return [attempt for each in CLASSES for attempt in each.attempts]


async def run_all_attempts(profile: SandboxProfile) -> list[Outcome]:
    """Try everything; only the attempts from the sandbox depend on the profile."""
    agent = [outcome async for _, outcome in from_the_sandbox(ATTEMPTS, profile)]
    left = [outcome async for outcome in from_what_is_left()]
    return [*agent, *left, *from_words(), *[each async for each in from_classes(of_classes(), is_defended=True)]]


async def without_defenses() -> list[Outcome]:
    """Try all attempts that can be tried without their defense."""
    return [each async for each in from_classes(of_classes(), is_defended=False)]


def as_table(outcomes: Collection[Outcome]) -> str:
    """Return the outcomes for people."""
    lines = [
        f"{'SUCCEEDED' if each.succeeded else 'failed':9}  {each.by:10}  {each.attempt:75}  {each.stopped_by}"
        for each in outcomes
    ]
    won = sum(each.succeeded for each in outcomes)
    return "\n".join([*lines, f"{len(outcomes)} attempts, {won} succeeded"])


def write_json(outcomes: Collection[Outcome], file: Path) -> None:
    """Write the outcomes for programs."""
    file.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")


def _in_words(attempt: Callable[..., object]) -> str:
    return attempt.__name__.replace("_", " ")
