"""Git as a process: it ends in time with all its children, and uses no configuration of this machine."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.soldiers.checkouts import git as running_git
from kingdom.soldiers.checkouts.git import REMOTE_TRIES, GitFailed, retry_git, run_git
from kingdom.soldiers.checkouts.repository import Repository
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.running import eventually
from tests.integration.soldiers.processes import growing_limits
from tests.integration.soldiers.sources import a_tree, make_source, processes_in
from tests.patience import PATIENCE_SECONDS

# An alias makes git start a shell, as it starts its own helpers. This one ignores SIGTERM.
STUBBORN = "trap '' TERM; echo > started; sleep 60 & sleep 60; sleep 60"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".gitconfig").write_text(f'[alias]\n\tstubborn = "!{STUBBORN}"\n\tshown = !env\n')
    return tmp_path


@pytest.fixture(autouse=True)
def brief_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the grace period of git, because git never ends by itself here."""
    monkeypatch.setattr(running_git, "_GRACE_SECONDS", 0.1)


async def test_a_git_that_takes_too_long_is_killed_with_its_children_and_not_started_again(
    tmp_path: Path, home: Path
) -> None:
    begun: list[timedelta] = []

    async def begin() -> str:
        begun.append(limit)
        return await run_git("stubborn", cwd=tmp_path, home=home, limit=limit)

    for limit in growing_limits():
        begun.clear()
        with pytest.raises(GitFailed, match=f"stubborn took longer than {limit.total_seconds():g} s"):
            await retry_git(begin, tries=REMOTE_TRIES)
        assert begun == [limit]
        await _until_none_in(tmp_path)
        if (tmp_path / "started").exists():
            break


async def test_a_cancelled_git_is_killed_with_its_children(tmp_path: Path, home: Path) -> None:
    running = asyncio.create_task(run_git("stubborn", cwd=tmp_path, home=home))
    await _until_exists(tmp_path / "started")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _until_none_in(tmp_path)


async def test_a_git_that_is_cancelled_at_once_leaves_no_process(tmp_path: Path, home: Path) -> None:
    for turns in range(8):
        running = asyncio.create_task(run_git("stubborn", cwd=tmp_path, home=home))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await _until_none_in(tmp_path)


async def test_a_cancelled_prepare_leaves_no_process_no_tree_and_a_free_lock(tmp_path: Path) -> None:
    source, host = make_source(tmp_path / "app"), tmp_path / "host"
    (host / "repositories").mkdir(parents=True)
    # The fetch of the second repository hangs, because its server never answers.
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    config = host / "repositories" / ".gitconfig"
    config.write_text(f'[core]\n\tsshCommand = "echo > {tmp_path}/reached; cat {stuck}; :"\n')
    trees = RunCheckouts(host / "repositories")
    first, second = a_tree(host, source), a_tree(host, source, "tree2", git_id="far", url="ssh://example.org/far")
    preparing = asyncio.create_task(trees.prepare([first, second]))
    await _until_exists(tmp_path / "reached")
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    await _until_none_in(tmp_path)
    assert list((host / "trees").iterdir()) == []
    for name in ("app", "far"):
        repository = Repository(host / "repositories" / f"{name}.git", url="", home=host)
        async with asyncio.timeout(PATIENCE_SECONDS), repository.locked():
            pass


async def test_variables_of_this_process_do_not_reach_git(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    shown = await run_git("shown", cwd=tmp_path, home=home)
    assert "elsewhere" not in shown
    assert "Somebody" not in shown
    assert f"HOME={home}\n" in shown
    assert "GIT_TERMINAL_PROMPT=0\n" in shown


async def test_a_failure_shows_the_output_of_git_but_no_parameters(tmp_path: Path) -> None:
    with pytest.raises(GitFailed, match=r"git rev-parse failed .* not a git repository") as failed:
        await run_git("rev-parse", "secret", cwd=tmp_path, home=tmp_path)
    assert failed.value.exit_code == 128
    assert "secret" not in str(failed.value)


async def test_a_missing_directory_is_a_failure_of_git(tmp_path: Path) -> None:
    with pytest.raises(GitFailed, match="could not be started"):
        await run_git("status", cwd=tmp_path / "missing", home=tmp_path)


async def _until_none_in(path: Path) -> None:
    async def none() -> bool:
        return not processes_in(path)

    await eventually(none)


async def _until_exists(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not path.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
