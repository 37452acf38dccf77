"""All attempts of a hostile agent, a hostile repository and hostile text fail."""

import json
import shutil
from pathlib import Path

import pytest

from kingdom.court.petitions.commits import is_own_branch
from kingdom.soldiers.sandbox.resource_limits import create_control_groups
from kingdom.soldiers.sandbox.sandbox import ResourceLimits, SandboxProfile
from tests.redteam.attempts import ATTEMPTS, MEMORY
from tests.redteam.hostile_agent import TRICKS
from tests.redteam.suite import (
    AT_LEAST,
    as_table,
    defended_attempts,
    run_all_attempts,
    try_as_agent,
    try_defended_attempts,
    try_hostile_texts,
    without_defenses,
    write_json,
)
from tests.redteam.words import granted, petition

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.agents
# Races run 1,000 times.
@pytest.mark.timeout(3600)
async def test_every_attempt_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = await run_all_attempts(SandboxProfile.STRICT)
    with capsys.disabled():
        print("\n" + as_table(outcomes))  # noqa: T201 - the table is for people
    write_json(outcomes, tmp_path / "redteam.json")
    listed = json.loads((tmp_path / "redteam.json").read_text())
    assert len(listed) >= AT_LEAST
    assert all(each["stopped_by"] for each in listed)
    groups, left = create_control_groups(ResourceLimits(memory_bytes=1 << 30))
    await groups.remove()
    unlimited = {MEMORY.replace("_", " ")} if left.memory_bytes else set()
    assert {each.attempt for each in outcomes if each.succeeded} <= unlimited


@pytest.mark.agents
async def test_attempts_that_only_the_sandbox_stops_succeed_without_it() -> None:
    tried = [both async for both in try_as_agent(ATTEMPTS, SandboxProfile.OFF)]
    stopped = [attempt.trick for attempt, outcome in tried if attempt.only_sandbox and not outcome.succeeded]
    assert stopped == []
    assert sum(outcome.succeeded for _, outcome in tried) >= 20


@pytest.mark.agents
async def test_every_defended_attempt_succeeds_without_its_defense(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = await without_defenses()
    with capsys.disabled():
        print("\n" + as_table(outcomes))  # noqa: T201 - the table is for people
    assert [each for each in outcomes if not each.succeeded] == []


@pytest.mark.parametrize("is_defended", [True, False], ids=["with", "without"])
async def test_quick_defended_attempts_succeed_only_without_their_defense(*, is_defended: bool) -> None:
    quick = [attempt for attempt in defended_attempts() if attempt.quick]
    outcomes = [outcome async for outcome in try_defended_attempts(quick, is_defended=is_defended)]
    assert len(outcomes) >= 6
    assert [each for each in outcomes if each.succeeded is is_defended] == []


async def test_the_quick_attempts_of_an_agent_fail() -> None:
    quick = [attempt for attempt in ATTEMPTS if attempt.quick]
    outcomes = [outcome async for _, outcome in try_as_agent(quick, SandboxProfile.STRICT)]
    assert len(outcomes) >= 12
    assert [each for each in outcomes if each.succeeded] == []


async def test_two_quick_attempts_succeed_without_a_sandbox() -> None:
    two = [attempt for attempt in ATTEMPTS if attempt.quick and attempt.only_sandbox][:2]
    assert [outcome.succeeded async for _, outcome in try_as_agent(two, SandboxProfile.OFF)] == [True, True]


def test_every_attack_by_hostile_text_fails() -> None:
    assert [each for each in try_hostile_texts() if each.succeeded] == []


def test_a_harmless_petition_and_an_own_branch_are_accepted() -> None:
    assert granted(petition("github.comment", body="Well done.")) == "granted"
    assert is_own_branch("kingdom/wf-1/tree1", "wf-1")


def test_every_trick_is_attempted_once() -> None:
    assert sorted(attempt.trick for attempt in ATTEMPTS) == sorted(TRICKS)
