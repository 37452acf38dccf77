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
    from_classes,
    from_the_sandbox,
    from_words,
    of_classes,
    run_all_attempts,
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
async def test_without_a_sandbox_what_only_it_stops_succeeds() -> None:
    tried = [both async for both in from_the_sandbox(ATTEMPTS, SandboxProfile.OFF)]
    stopped = [attempt.trick for attempt, outcome in tried if attempt.only_sandbox and not outcome.succeeded]
    assert stopped == []
    assert sum(outcome.succeeded for _, outcome in tried) >= 20


@pytest.mark.agents
async def test_without_the_defence_against_it_every_attempt_of_the_classes_succeeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = await without_defenses()
    with capsys.disabled():
        print("\n" + as_table(outcomes))  # noqa: T201 - the table is for people
    assert [each for each in outcomes if not each.succeeded] == []


@pytest.mark.parametrize("is_defended", [True, False], ids=["with", "without"])
async def test_one_attempt_of_each_kind_depends_on_its_defence(*, is_defended: bool) -> None:
    quick = [attempt for attempt in of_classes() if attempt.quick]
    outcomes = [outcome async for outcome in from_classes(quick, is_defended=is_defended)]
    assert len(outcomes) >= 6
    assert [each for each in outcomes if each.succeeded is is_defended] == []


async def test_a_dozen_attempts_fail() -> None:
    quick = [attempt for attempt in ATTEMPTS if attempt.quick]
    outcomes = [outcome async for _, outcome in from_the_sandbox(quick, SandboxProfile.STRICT)]
    assert len(outcomes) >= 12
    assert [each for each in outcomes if each.succeeded] == []


async def test_the_attempts_can_succeed() -> None:
    one = [attempt for attempt in ATTEMPTS if attempt.quick and attempt.only_sandbox][:2]
    assert [outcome.succeeded async for _, outcome in from_the_sandbox(one, SandboxProfile.OFF)] == [True, True]


def test_hostile_text_gains_nothing() -> None:
    assert [each for each in from_words() if each.succeeded] == []


def test_valid_words_are_accepted() -> None:
    assert granted(petition("github.comment", body="Well done.")) == "granted"
    assert is_own_branch("kingdom/wf-1/tree1", "wf-1")


def test_every_trick_is_attempted_once() -> None:
    assert sorted(attempt.trick for attempt in ATTEMPTS) == sorted(TRICKS)
