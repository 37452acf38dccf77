"""Test one mutant: with the fast part of the contract suite, then with the tests of its region, then by faults."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from bench.mutants.mutant import Mutant
from bench.mutants.reach import RECORD, MeasuredTest, read_reach
from bench.mutants.sites import SOURCE, Region
from bench.postgres import PrivateCluster

ROOT = Path(__file__).parents[2]
FAULT_SECONDS = 10
# The tests of this file start processes, and what those processes reach is not recorded.
_LEFT_OUT = "test_processes.py"
SUITE = tuple(
    str(file.relative_to(ROOT))
    for file in sorted((ROOT / "tests" / "contract").glob("test_*.py"))
    if file.name != _LEFT_OUT
)
_POLL_SECONDS = 0.1
_OPTIONS = "-x -q --no-header --tb=line -n0 -m gate -p no:cacheprovider -p bench.mutants.reach"
_PYTEST = (sys.executable, "-m", "pytest", *_OPTIONS.split())
NO_TESTS: Mapping[str, Sequence[str]] = {}
AS_IT_IS = Mutant("", "", "nothing is damaged", 0, 0, 0, "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The stage that noticed a mutant, if any, and its output."""

    mutant: Mutant
    killed_by: str | None
    output: str
    seconds: float


class Bench:
    """A test bench for mutants with its own server."""

    def __init__(self, cluster: PrivateCluster, *, patience: float, test_patience: float) -> None:
        self._cluster = cluster
        self._patience = patience
        self._test_patience = test_patience
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the running stage soon, from another thread."""
        self._stopped.set()

    def survey(self, suite: Sequence[str], *options: str) -> list[MeasuredTest]:
        """Run a suite on the unchanged product, which must pass, and return what each of its tests reaches."""
        with _damaged(AS_IT_IS) as folder, tempfile.TemporaryDirectory() as directory:
            record = Path(directory) / "reach.jsonl"
            complaint = self._run((*_PYTEST, *options, *suite), folder, **{RECORD: str(record)})
            if complaint is not None:
                sys.exit(f"{' '.join(suite)} failed on the unchanged product: {complaint}")
            return read_reach(record)

    def judge(
        self, region: Region, mutant: Mutant = AS_IT_IS, stages: Mapping[str, Sequence[str]] = NO_TESTS
    ) -> Verdict:
        """Test a mutant by the given stages of tests, then by fault injection.

        A mutant also counts as noticed if a test or a stage exceeds its time limit.
        """
        began = time.monotonic()
        inject_faults = (sys.executable, "-m", "bench.mutants.fault_injection", region.backend, str(FAULT_SECONDS))
        with _damaged(mutant) as folder:
            arguments = folder / "tests.txt"
            for stage, tests in stages.items():
                arguments.write_text("\n".join(tests))
                command = (*_PYTEST, f"--timeout={self._test_patience:.0f}", f"@{arguments}")
                complaint = self._run(command, folder) if tests else None
                if complaint is not None:
                    return Verdict(mutant, stage, complaint, time.monotonic() - began)
            complaint = self._run(inject_faults, folder)
        return Verdict(mutant, "fault injection" if complaint else None, complaint or "", time.monotonic() - began)

    def _run(self, command: Sequence[str], folder: Path, **variables: str) -> str | None:
        """Return the complaint of a stage, or None if it passes."""
        environment = {**os.environ, "PYTHONPATH": str(folder), "DATABASE_URL": self._cluster.dsn, **variables}
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            deadline = time.monotonic() + self._patience
            try:
                while process.poll() is None:
                    if self._stopped.wait(_POLL_SECONDS):
                        return "was stopped"
                    if time.monotonic() > deadline:
                        return f"did not end within {self._patience:.0f} s"
            finally:
                _end(process)
                self._empty()
            output.seek(0)
            return None if process.returncode == 0 else _last_words(output.read())

    def _empty(self) -> None:
        """Drop the databases that a killed run has left."""
        with psycopg.connect(self._cluster.dsn, autocommit=True) as connection:
            names = connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate").fetchall()
        for (name,) in names:
            if name != "postgres":
                self._cluster.drop_database(name)


@contextmanager
def _damaged(mutant: Mutant) -> Iterator[Path]:
    """Create a tree of links to the product with one changed file. It comes first on the path."""
    with tempfile.TemporaryDirectory(prefix="kingdom-mutant-") as name:
        folder = Path(name)
        shutil.copytree(SOURCE, folder / "kingdom", copy_function=os.symlink)
        if mutant.file:
            file = folder / "kingdom" / mutant.file
            source = file.read_text(encoding="utf-8")
            file.unlink()
            file.write_text(mutant.applied(source), encoding="utf-8")
        yield folder


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a hanging stage and all its processes."""
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def _last_words(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    telling = [line for line in lines if line.startswith(("FAILED", "ERROR", "finding"))]
    return (telling[0] if telling else lines[-1])[:200]
