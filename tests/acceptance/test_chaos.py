"""The bus survives fault injection, and the checker finds the defect of each broken variant."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from bench.chaos.__main__ import FAULT_KINDS, FAULT_KINDS_IN_SHORT, FAULTS_PER_SECOND, LOCK_HOLDER_STOPPED
from bench.chaos.backends import BACKENDS
from bench.chaos.scenarios import SCENARIOS, Scenario
from kingdom.errors import Unavailable
from kingdom.verify import TrialPlan, verify
from kingdom.verify.trial import run_trial
from tests.benches import bench
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
# Enough for every kind of fault of the processes themselves.
SECONDS = 10
# The shortest run that also injects faults into the environment of the processes.
LONG_SECONDS = 30
AROUND = {
    "postgres": {"server_killed", "read_only", "bouncer_killed", "half_open", "slow", "cut_in_answer"},
    "files": {"disk_full", "disk_failed_to_sync", "disk_read_only", "killed_in_checkpoint"},
}
SHOWN = [
    pytest.param(backend, scenario, id=f"{backend}-{scenario.variant}")
    for scenario in SCENARIOS
    for backend in sorted(scenario.backends)
]
DIFFERENT_SCENARIOS = [
    pytest.param(backend, scenario, id=f"{backend}-{scenario.act.__name__.strip('_')}")
    for scenario in {scenario.act: scenario for scenario in SCENARIOS}.values()
    for backend in sorted(scenario.backends)
]


@pytest.fixture
def url(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return f"file:{tmp_path}" if backend == "files" else str(request.getfixturevalue("dsn"))


def leftovers(url: str) -> list[str]:
    """Return the existing temporary schemas or directories."""
    if url.startswith("file:"):
        return [path.name for path in Path(url.removeprefix("file:")).iterdir()]
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kingdom_verify_%'").fetchall()
    return [row[0] for row in rows]


def processes_under_test() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "kingdom.verify.process" in child.cmdline()]


@pytest.mark.variants
@pytest.mark.parametrize(("backend", "scenario"), SHOWN)
async def test_the_checker_catches_the_broken_variant(backend: str, scenario: Scenario, url: str) -> None:
    report = await scenario.run(url, backend, broken=True)
    assert report.violations_by_kind[scenario.expects.value] > 0
    assert report.violations_by_kind["processes failed"] == 0


@pytest.mark.variants
@pytest.mark.parametrize(("backend", "scenario"), DIFFERENT_SCENARIOS)
async def test_the_intact_bus_passes_the_scenario_that_a_broken_variant_fails(
    backend: str, scenario: Scenario, url: str
) -> None:
    report = await scenario.run(url, backend, broken=False)
    assert report.violations == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_variant_has_a_scenario(backend: str) -> None:
    shown = {scenario.variant for scenario in SCENARIOS if backend in scenario.backends}
    assert shown == BACKENDS[backend].variants.keys()


APPLY_ALL = """
import os, sys
from bench.chaos.backends import BACKENDS
for name, variant in BACKENDS[sys.argv[1]].variants.items():
    if os.fork() == 0:
        variant()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        sys.exit(f"{name} cannot be applied")
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_variant_can_be_applied_to_the_code(backend: str) -> None:
    subprocess.run([sys.executable, "-c", APPLY_ALL, backend], cwd=ROOT, check=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bus_keeps_its_guarantees_while_its_processes_are_killed_stopped_and_cut_off(backend: str) -> None:
    words = ["--backend", backend, "--seconds", str(SECONDS), "--no-variants", "--json", "-"]
    command = [sys.executable, "-m", "bench.chaos", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["details"] == []
    assert figures["faults"] >= SECONDS
    assert len(figures["faults_by_kind"]) >= FAULT_KINDS_IN_SHORT
    assert (LOCK_HOLDER_STOPPED in figures["faults_by_kind"]) == (backend == "files")
    assert set(figures["findings"].values()) == {0}
    assert figures["events"]["DONE"] > 0
    assert figures["events"]["DEAD"] > 0
    assert done.returncode == 0, done.stderr


@pytest.mark.benches
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bus_keeps_its_guarantees_while_its_store_and_its_environment_fail(backend: str) -> None:
    words = ("--backend", backend, "--seconds", str(LONG_SECONDS), "--no-variants")
    figures = json.loads(bench("chaos", *words, ends_with=0).stdout.splitlines()[-1])
    assert set(figures["findings"].values()) == {0}
    assert figures["faults"] >= LONG_SECONDS * FAULTS_PER_SECOND
    assert len(figures["faults_by_kind"]) >= FAULT_KINDS
    assert AROUND[backend] & figures["faults_by_kind"].keys()


@pytest.mark.variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_broken_bus_does_not_pass_while_its_environment_fails(backend: str) -> None:
    words = ("--backend", backend, "--seconds", str(LONG_SECONDS), "--variant", "never_roll_back")
    figures = json.loads(bench("chaos", *words, ends_with=1).stdout.splitlines()[-1])
    assert figures["findings"]["rolled-back events delivered"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_interrupted_verification_leaves_neither_processes_nor_its_store(url: str) -> None:
    verification = asyncio.create_task(verify(url, seconds=60, seed=7))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not processes_under_test():  # noqa: ASYNC110 - the processes are what is waited for
            await asyncio.sleep(0.05)
    assert len(leftovers(url)) == 1
    verification.cancel()
    await asyncio.gather(verification, return_exceptions=True)
    assert verification.cancelled()
    assert leftovers(url) == []
    assert processes_under_test() == []


async def test_processes_that_cannot_start_are_reported_with_their_output(tmp_path: Path) -> None:
    plan = TrialPlan(seconds=0, seed=1, command=(sys.executable, "-c", "raise SystemExit('no')"))
    with pytest.raises(Unavailable, match="do not start: no"):
        await run_trial(f"file:{tmp_path}", plan)
    assert leftovers(f"file:{tmp_path}") == []
