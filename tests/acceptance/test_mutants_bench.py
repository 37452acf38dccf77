"""The mutation bench can fail: with a suite that checks nothing a mutant survives, and the bench reports it."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.mutants.__main__ import KILLED_MIN, complaints_about
from bench.mutants.mutant import Mutant
from bench.mutants.sites import REGIONS, find_by_name
from bench.mutants.trial import AS_IT_IS, Bench, Verdict
from bench.postgres import PrivateCluster
from tests.benches import ROOT, bench
from tests.patience import PATIENCE_SECONDS

MUTANTS_MIN = 60
MUTANT = "backends/postgres/sql/record.sql find_due: turns ORDER BY due_at, id around"
# Every test of a stream reaches it.
REACHED_MUTANT = "backends/postgres/sql/claim.sql claim: turns ORDER BY next_retry_at, id around"


def has_started_tests(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("pytest" in child.cmdline() for child in process.children(recursive=True))
    return False


def verdicts(*, killed: int, survived: int) -> list[Verdict]:
    dead = Verdict(AS_IT_IS, "fault injection", "finding", 1.0)
    alive = Verdict(Mutant("a.sql", "take", "drops a lock", 1, 0, 0, ""), None, "", 1.0)
    return [dead] * killed + [alive] * survived


def test_enough_mutants_that_are_all_killed_keep_the_bounds() -> None:
    assert sum(region.share for region in REGIONS.values()) >= MUTANTS_MIN
    assert not list(complaints_about(verdicts(killed=MUTANTS_MIN, survived=0), least=MUTANTS_MIN))


def test_too_few_mutants_too_many_survivors_and_unexplained_survivors_are_reported() -> None:
    survivors = round(MUTANTS_MIN * (1 - KILLED_MIN)) + 1
    words = list(complaints_about(verdicts(killed=MUTANTS_MIN - 1 - survivors, survived=survivors), least=MUTANTS_MIN))
    assert words[0] == f"{MUTANTS_MIN - 1} mutants were tried, at least {MUTANTS_MIN} must be"
    assert words[1].startswith(f"{survivors} of {MUTANTS_MIN - 1} mutants survived")
    assert set(words[2:]) == {"survived without an explanation: a.sql take: drops a lock"}


@pytest.mark.parametrize("name", [MUTANT, REACHED_MUTANT])
def test_the_mutants_of_these_tests_exist(name: str) -> None:
    _, mutant = find_by_name(name)
    assert mutant.name == name


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("files", marks=pytest.mark.mutants_files),
        pytest.param("postgres", marks=pytest.mark.mutants_postgres),
    ],
)
def test_almost_every_mutant_of_the_bus_is_killed_and_every_survivor_is_explained(backend: str) -> None:
    result = bench("mutants", "--backend", backend, ends_with=0)
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["mutants"] == sum(region.share for region in REGIONS.values() if region.backend == backend)
    assert figures["killed_share"] >= KILLED_MIN


@pytest.mark.variants
def test_a_mutant_is_killed_by_the_contract_suite_and_survives_one_that_checks_nothing() -> None:
    result = bench(
        "mutants", "--jobs", "1", "--only", MUTANT, "--suite", "tests/contract/test_transactions.py", ends_with=0
    )
    assert json.loads(result.stdout.splitlines()[-1])["killed_by"] == {"contract suite": 1}
    result = bench("mutants", "--jobs", "1", "--only", MUTANT, "--suite", "tests/contract/test_pause.py", ends_with=1)
    assert json.loads(result.stdout.splitlines()[-1])["survivors"] == [MUTANT]


@pytest.mark.variants
def test_a_mutant_on_which_one_test_hangs_is_killed_long_before_its_stage_ends(tmp_path: Path) -> None:
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text("import pytest, time\n\n@pytest.mark.gate\ndef test_hangs():\n    time.sleep(3600)\n")
    # A trial drops all databases of its server, so it has one of its own.
    with PrivateCluster(ignore_database_url=True) as cluster:
        trials = Bench(cluster, patience=3600, test_patience=1)
        verdict = trials.judge(next(iter(REGIONS.values())), stages={"own tests": [str(hanging)]})
    assert verdict.killed_by == "own tests"
    assert verdict.output.endswith("test_hanging.py::test_hangs")


@pytest.mark.variants
def test_a_signal_ends_the_bench_and_all_its_processes_in_the_middle_of_a_mutant() -> None:
    words = ["--jobs", "1", "--only", REACHED_MUTANT, "--suite", "tests/contract/test_pause.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "bench.mutants", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        # The coverage is recorded, so the next processes run the mutant.
        assert any("postgres, unchanged" in line for line in running.stderr)
        own = psutil.Process(running.pid)
        while not has_started_tests(own):
            assert running.poll() is None
        children = own.children(recursive=True)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_SECONDS) == -signal.SIGINT
        _, alive = psutil.wait_procs(children, PATIENCE_SECONDS)
    assert not alive
