"""The bus under a nemesis stays whole, and the checker finds what is wrong with each broken variant of it."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg
import pytest

from bench.chaos.__main__ import FAULT_KINDS
from bench.chaos.scenarios import SCENARIOS, Scenario
from bench.chaos.variants import VARIANTS
from kingdom.errors import Unavailable
from kingdom.verify import Plan, verify
from kingdom.verify.trial import torment

ROOT = Path(__file__).parents[2]
SECONDS = 12
DIFFERENT_PLAYS = {scenario.play: scenario for scenario in SCENARIOS}.values()
# A busy machine starts processes slowly; nothing here is measured.
pytestmark = pytest.mark.timeout(400)


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kingdom_verify_%'").fetchall()
    return [row[0] for row in rows]


def processes_under_test() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "kingdom.verify.process" in child.cmdline()]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.variant)
async def test_the_checker_catches_the_broken_variant(scenario: Scenario, dsn: str) -> None:
    report = await scenario.run(dsn, broken=True)
    assert report.findings_by_kind[scenario.expects.value] > 0
    assert report.findings_by_kind["processes failed"] == 0


@pytest.mark.parametrize("scenario", DIFFERENT_PLAYS, ids=lambda scenario: scenario.play.__name__.strip("_"))
async def test_the_bus_passes_what_the_broken_variant_fails(scenario: Scenario, dsn: str) -> None:
    report = await scenario.run(dsn, broken=False)
    assert report.findings == []


def test_every_variant_has_a_scenario() -> None:
    assert {scenario.variant for scenario in SCENARIOS} == VARIANTS.keys()


def test_the_bus_stays_whole_while_its_processes_are_killed_stopped_and_cut_off() -> None:
    command = [sys.executable, "-m", "bench.chaos", "--seconds", str(SECONDS), "--no-variants", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["details"] == []
    assert figures["faults"] >= SECONDS
    assert len(figures["faults_by_kind"]) >= FAULT_KINDS
    assert set(figures["findings"].values()) == {0}
    assert figures["events"]["DONE"] > 0
    assert figures["events"]["DEAD"] > 0
    assert done.returncode == 0, done.stderr


async def test_verify_checks_the_users_own_database_and_leaves_nothing_there(dsn: str) -> None:
    report = await verify(dsn, seconds=3, seed=7)
    assert report.findings == []
    assert report.seed == 7
    assert report.actions["accepted"] > 0
    assert report.statuses["DONE"] > 0
    assert len(report.faults) > 0
    assert schemas(dsn) == []
    assert processes_under_test() == []


async def test_a_verification_that_is_broken_off_leaves_neither_processes_nor_its_schema(dsn: str) -> None:
    verification = asyncio.create_task(verify(dsn, seconds=60, seed=7))
    async with asyncio.timeout(60):
        while not processes_under_test():  # noqa: ASYNC110 - the processes are what is waited for
            await asyncio.sleep(0.05)
    assert len(schemas(dsn)) == 1
    verification.cancel()
    await asyncio.gather(verification, return_exceptions=True)
    assert verification.cancelled()
    assert schemas(dsn) == []
    assert processes_under_test() == []


async def test_processes_that_cannot_start_are_reported_with_their_words(dsn: str) -> None:
    plan = Plan(
        seconds=0, seed=1, patience=timedelta(seconds=2), command=(sys.executable, "-c", "raise SystemExit('no')")
    )
    with pytest.raises(Unavailable, match="do not start: no"):
        await torment(dsn, plan)
    assert schemas(dsn) == []
