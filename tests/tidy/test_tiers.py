"""Check that make, CI and CONTRIBUTING know every part of the proof."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiers import GATE, PARTS

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
# Plugins that would hide flaky tests.
RERUNNING = ("flaky", "pytest-rerunfailures", "pytest-retry")
TWICE = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        runtestprotocol(item, nextitem=nextitem)
    return True
"""
TIERS = """
from tests import tiers

def pytest_configure(config):
    tiers.register(config)

def pytest_collection_modifyitems(items):
    tiers.assign(items)
"""
STORE_NAMES = ("files", "postgres")
STORES = f"""
import pytest

@pytest.mark.parametrize("backend", {STORE_NAMES})
def test_any(backend): pass

@pytest.mark.both_stores
@pytest.mark.parametrize("backend", {STORE_NAMES})
def test_race(backend): pass

@pytest.mark.timing
def test_slow(): pass
"""


def workflow(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8"))
    return document


def test_make_runs_every_part() -> None:
    (listed,) = re.findall(r"^PARTS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed.split()) == sorted(PARTS)


def test_contributors_read_the_reason_of_every_part() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)).items() >= PARTS.items()


def test_every_part_and_every_bench_runs_each_night() -> None:
    night = workflow("proof")
    # YAML 1.1 reads the key `on` as true.
    assert "schedule" in night[True]  # type: ignore[index]  # all other keys are texts
    jobs = night["jobs"]
    assert sorted(jobs["part"]["strategy"]["matrix"]["part"]) == sorted(PARTS)
    targets = jobs["bench"]["strategy"]["matrix"]["target"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    benches = re.findall(r"^([\w-]+):\n(?:\t.+\n)*\t\$\(BIN\)/python -m bench\.", makefile, re.MULTILINE)
    assert sorted(targets) == sorted(benches)


def test_nothing_is_released_without_the_gate_and_the_proof() -> None:
    jobs = workflow("release")["jobs"]
    assert jobs["check"]["uses"].endswith("/check.yml")
    assert jobs["proof"]["uses"].endswith("/proof.yml")
    assert jobs["publish"]["needs"] == ["check", "proof"]


def test_ci_runs_the_gate_like_every_developer() -> None:
    steps = workflow("check")["jobs"]["check"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    assert '"${@:-check}"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_no_plugin_runs_a_failed_test_again() -> None:
    locked = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert [name for name in RERUNNING if f'name = "{name}"' in locked] == []


def test_a_test_that_ran_again_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TWICE)
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    words = (sys.executable, "-m", "pytest", "-p", "tests.reruns", f"--rootdir={tmp_path}", tmp_path)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "tests that ran again: test_it.py::test_it\n" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_only_domain_tests_on_postgres_leave_the_gate_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TIERS)
    for place in ("tests/integration/court", "tests/contract"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "test_it.py").write_text(STORES)
    domain = "tests/integration/court/test_it.py::"
    assert collected(tmp_path, "second_store") == {f"{domain}test_any[postgres]"}
    assert collected(tmp_path, "timing") == {f"{place}test_slow" for place in (domain, "tests/contract/test_it.py::")}
    assert collected(tmp_path, GATE) == {
        f"{domain}test_any[files]",
        f"{domain}test_race[files]",
        f"{domain}test_race[postgres]",
        *(f"tests/contract/test_it.py::test_{name}[{store}]" for name in ("any", "race") for store in STORE_NAMES),
    }


def collected(root: Path, part: str) -> set[str]:
    words = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", part, f"--rootdir={root}", root)
    done = subprocess.run((*words, "--import-mode=importlib"), cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}
