"""Generals are installed, changed and removed while the court is running."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kingdom.court import live_packages
from kingdom.court.live_packages import LivePackages
from kingdom.court.package_files import SHIPPED


class _UncachedPackages(LivePackages):
    """Checks the files at every access."""

    def _reload_if_changed(self) -> None:
        self._next_check = 0.0
        super()._reload_if_changed()


@pytest.fixture
def generals(tmp_path: Path) -> Path:
    return tmp_path / "generals"


def install(generals: Path, name: str) -> Path:
    return shutil.copytree(SHIPPED / name, generals / name)


def test_without_a_directory_there_are_no_generals(generals: Path) -> None:
    assert _UncachedPackages(generals).by_name() == {}


def test_a_general_that_is_installed_is_noticed_and_one_that_is_removed_too(generals: Path) -> None:
    packages = _UncachedPackages(generals)
    assert list(packages.by_name()) == []
    folder = install(generals, "gen-pr")
    assert list(packages.by_name()) == ["gen-pr"]
    shutil.rmtree(folder)
    assert list(packages.by_name()) == []


def test_a_changed_prompt_applies_from_the_next_assignment_on(generals: Path) -> None:
    folder = install(generals, "gen-pr")
    packages = _UncachedPackages(generals)
    before = packages.by_name()["gen-pr"].template
    prompt = folder / "prompts" / "review.md"
    prompt.write_text(prompt.read_text() + "\nBe brief.\n")
    after = packages.by_name()["gen-pr"].template
    assert before != after
    assert "Be brief." in after.works[0].tasks[0].query


def test_a_broken_general_disables_only_itself_until_it_is_repaired(generals: Path) -> None:
    install(generals, "gen-pr")
    folder = install(generals, "gen-briefing")
    packages = _UncachedPackages(generals)
    whole = (folder / "general.yaml").read_text()
    (folder / "general.yaml").write_text("name: [")
    assert list(packages.by_name()) == ["gen-pr"]
    (folder / "general.yaml").write_text(whole)
    assert sorted(packages.by_name()) == ["gen-briefing", "gen-pr"]


def test_the_memory_of_a_general_is_no_change_of_its_package(generals: Path) -> None:
    folder = install(generals, "gen-pr")
    packages = _UncachedPackages(generals)
    known = packages.all()
    (folder / "memory").mkdir()
    (folder / "memory" / "patterns.md").write_text("- something\n")
    assert packages.all() is known


def test_files_of_generals_are_not_checked_at_every_access(generals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_packages, "_CHECK_SECONDS", 3600)
    packages = LivePackages(generals)
    assert packages.all() == ()
    install(generals, "gen-pr")
    assert packages.all() == ()


def test_a_failed_read_of_the_generals_does_not_count_as_none(generals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(generals, "gen-pr")
    packages = LivePackages(generals)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", _unreadable)
        for _ in range(2):
            with pytest.raises(PermissionError):
                packages.all()
    assert list(packages.by_name()) == ["gen-pr"]


def _unreadable(_: Path) -> Iterator[Path]:
    raise PermissionError
