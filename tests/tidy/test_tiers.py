"""Each part of the proof is known everywhere: to make, to CI at night and before a release, and to contributors."""

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
# A plugin of this kind would hide a test that fails now and then.
RERUNNING = ("flaky", "pytest-rerunfailures", "pytest-retry")
TWICE = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        runtestprotocol(item, nextitem=nextitem)
    return True
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
    # YAML 1.1 takes the key `on` for a truth value.
    assert "schedule" in night[True]  # type: ignore[index]
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


def test_ci_runs_the_gate_as_everybody_does() -> None:
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


def test_each_test_is_in_one_tier(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()}
        assert (GATE in marks) != bool(PARTS.keys() & marks), item.nodeid
