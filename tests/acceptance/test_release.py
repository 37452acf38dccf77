"""The release: its two archives, and the wheel in an environment that contains nothing else."""

import email
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from kingdom.cli.reference.shapes import every_shape
from tests.acceptance.isolated_demo import IsolatedDemo
from tests.acceptance.json_commands import ShapeChecker
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MEGABYTES_AT_MOST = 70
DEMO_SECONDS_AT_MOST = 60
MEGABYTE = 1_000_000
CACHES = frozenset(
    {"__pycache__", ".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
# The source archive has these files in addition to those of the checkout.
ADDED = frozenset({"PKG-INFO"})
pytestmark = pytest.mark.installed


def uv() -> str:
    """Return the uv program with which `make setup` created the environment of this test."""
    on_path = shutil.which("uv")
    works = on_path and subprocess.run([on_path, "--version"], capture_output=True, check=False).returncode == 0
    return on_path if on_path and works else str(ROOT / ".uv" / "bin" / "uv")


def run(*words: str | Path, **variables: str) -> str:
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@dataclass(frozen=True)
class Built:
    """Both archives, a second wheel that was built from the source archive, and the versions of the lock file."""

    wheel: Path
    source: Path
    wheel_of_source: Path
    versions: Path

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))

    def source_files(self) -> set[str]:
        with tarfile.open(self.source) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("built")
    run(uv(), "build", "--quiet", "--wheel", "--out-dir", place / "straight")
    # By default uv builds the wheel from the source archive.
    run(uv(), "build", "--quiet", "--out-dir", place / "by-source")
    versions = place / "versions.txt"
    versions.write_text(run(uv(), "export", "--quiet", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes"))
    (wheel,) = (place / "straight").glob("*.whl")
    (source,) = (place / "by-source").glob("*.tar.gz")
    return Built(wheel, source, place / "by-source" / wheel.name, versions)


def test_the_source_archive_builds_the_same_wheel_as_the_checkout(built: Built) -> None:
    assert contents(built.wheel) == contents(built.wheel_of_source)


def test_the_wheel_contains_only_the_package(built: Built) -> None:
    package = ROOT / "src" / "kingdom"
    files = {path for path in package.rglob("*") if path.is_file() and not CACHES & set(path.parts)}
    inside = {name for name in contents(built.wheel) if ".dist-info/" not in name}
    assert inside == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {"kingdom/py.typed", "kingdom/backends/postgres/schema.sql"} <= inside
    assert not [name for name in inside if Path(name).name.startswith(("test_", "conftest"))]


def test_the_wheel_has_the_metadata_of_the_project(built: Built) -> None:
    metadata = built.metadata
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "kingdom",
        PROJECT["version"],
        "Apache-2.0",
    )
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert {each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each} == set(
        PROJECT["dependencies"]
    )
    assert (ROOT / "LICENSE").read_bytes() in contents(built.wheel).values()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_the_source_distribution_has_exactly_the_files_of_the_checkout(built: Built) -> None:
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    wanted = {path for path in tracked if (ROOT / path).is_file()}
    assert built.source_files() - ADDED == wanted


@pytest.fixture
def isolated_demo(tmp_path: Path) -> IsolatedDemo:
    return IsolatedDemo(tmp_path / "corner")


def processor_seconds() -> float:
    """Return the processor time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_environment(built: Built, place: Path) -> tuple[str, ...]:
    """Install only the wheel, and measure all files of site-packages before any bytecode exists."""
    run(uv(), "venv", "--quiet", "--python", sys.executable, place)
    run(uv(), "pip", "install", "--quiet", "--python", place, "--constraints", built.versions, built.wheel)
    (packages,) = place.glob("lib/python*/site-packages")
    sizes: dict[str, int] = {}
    for path in packages.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            top = path.relative_to(packages).parts[0]
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    megabytes = sum(sizes.values()) / MEGABYTE
    largest = ", ".join(f"{name} {sizes[name] / MEGABYTE:.1f}" for name in sorted(sizes, key=sizes.__getitem__)[:-6:-1])
    sys.stdout.write(
        f"installed: {megabytes:.1f} MB in {len(list(packages.glob('*.dist-info')))} packages ({largest})\n"
    )
    assert megabytes <= MEGABYTES_AT_MOST, f"{megabytes:.1f} MB, the largest: {largest}"
    return (str(place / "bin" / "kingdom"),)


def by_uvx(built: Built, place: Path) -> tuple[str, ...]:
    # Without this directory uv, not the demo, would write to the home.
    tools = ("env", f"UV_TOOL_DIR={place}", f"UV_CACHE_DIR={run(uv(), 'cache', 'dir').strip()}")
    options = ("--quiet", "--python", sys.executable, "--constraints", str(built.versions))
    return (*tools, uv(), "tool", "run", *options, "--from", str(built.wheel), "kingdom")


@pytest.mark.parametrize("way", [by_environment, by_uvx])
def test_the_demo_loses_nothing_does_nothing_twice_and_leaves_nothing(
    built: Built, tmp_path: Path, isolated_demo: IsolatedDemo, way: Callable[[Built, Path], tuple[str, ...]]
) -> None:
    kingdom = way(built, tmp_path / "installed")
    assert run(*kingdom, "--version") == f"kingdom {PROJECT['version']}\n"
    begun, used = time.monotonic(), processor_seconds()
    with isolated_demo.demo(by=kingdom) as demo:
        out, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        assert demo.returncode == 0, isolated_demo.story()[-3000:]
    seen = time.monotonic() - begun
    report: dict[str, Any] = ShapeChecker(every_shape()).check("demo", out)
    assert (report["ok"], report["findings"], report["directory"]) == (True, [], None)
    assert {each["general"]: each["status"] for each in report["assignments"]} == dict.fromkeys(
        ("gen-review", "gen-ticket", "gen-greeter"), "completed"
    )
    assert [kill["what"] for kill in report["kills"]] == ["agent", "king", "agent"]
    assert report["resumed_from"] in report["checkpoints"]
    assert (report["question"]["answer"], report["question"]["answered_by"]) == ("no", "demo")
    once = ("reviews", "comments", "pull_requests", "ticket_comments")
    assert {what: report["outside"][what] for what in once} == dict.fromkeys(once, 1)
    assert report["cost_usd"] == pytest.approx(sum(each["cost_usd"] for each in report["assignments"]))
    assert "continues the same session" in isolated_demo.story()
    assert (isolated_demo.files(), isolated_demo.processes()) == ([], [])
    sys.stdout.write(f"the demo took {report['seconds']:.0f} s, {seen:.0f} s with its start and its end\n")
    # Measure processor time, because other processes use this machine too.
    assert processor_seconds() - used <= DEMO_SECONDS_AT_MOST
