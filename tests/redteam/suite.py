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
from tests.redteam.host_traps import HOST_TRAPS
from tests.redteam.hostile_checkout import CHECKOUT
from tests.redteam.identity import IDENTITY
from tests.redteam.inside_policy import PETITIONS
from tests.redteam.racing import RACING
from tests.redteam.spending import SPENDING
from tests.redteam.spoofing import SPOOFING
from tests.redteam.target_host import opened
from tests.redteam.words import HOSTILE_TEXTS

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


async def try_as_agent(attempts: Iterable[Attempt], profile: SandboxProfile) -> AsyncIterator[tuple[Attempt, Outcome]]:
    """Let a hostile agent make these attempts, each on its own host. Without a sandbox, skip the harmful attempts."""
    for attempt in attempts:
        if profile is SandboxProfile.OFF and attempt.trick in NEVER_OUTSIDE:
            continue
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), profile) as host:
                tried = await host.attempt(attempt.trick)
        yield attempt, Outcome("agent", attempt.name, tried.succeeded, attempt.stopped_by, tried.evidence)


async def try_host_traps() -> AsyncIterator[Outcome]:
    """Let the host work on files that a hostile agent or repository has left."""
    for lay, guard in HOST_TRAPS:
        with TemporaryDirectory() as folder:
            async with opened(Path(folder).resolve(), SandboxProfile.STRICT) as host:
                won = await lay(host)
        yield Outcome("repository", _in_words(lay), bool(won), guard, won)


def try_hostile_texts() -> list[Outcome]:
    """Try the attacks by hostile text."""
    return [Outcome("words", _in_words(say), bool(won := say()), guard, won) for say, guard in HOSTILE_TEXTS]


async def try_defended_attempts(attempts: Iterable[DefendedAttempt], *, is_defended: bool) -> AsyncIterator[Outcome]:
    """Make these attempts, each in its own folder, with their defense or without it."""
    for attempt in attempts:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            won = await attempt.act(Ground(Path(folder).resolve(), is_defended, patch))
        yield Outcome(attempt.by, attempt.name, bool(won), attempt.stopped_by, " ".join(won.split())[:200])


def defended_attempts() -> list[DefendedAttempt]:
    """Return the attempts of all attack classes. Each can be made with its defense and without it."""
    return [attempt for each in CLASSES for attempt in each.attempts]


async def run_all_attempts(profile: SandboxProfile) -> list[Outcome]:
    """Make all attempts. Only the attempts of the agent depend on the profile."""
    agent = [outcome async for _, outcome in try_as_agent(ATTEMPTS, profile)]
    left = [outcome async for outcome in try_host_traps()]
    return [
        *agent,
        *left,
        *try_hostile_texts(),
        *[each async for each in try_defended_attempts(defended_attempts(), is_defended=True)],
    ]


async def without_defenses() -> list[Outcome]:
    """Make every defended attempt without its defense."""
    return [each async for each in try_defended_attempts(defended_attempts(), is_defended=False)]


def as_table(outcomes: Collection[Outcome]) -> str:
    """Return the outcomes as a table for people."""
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
