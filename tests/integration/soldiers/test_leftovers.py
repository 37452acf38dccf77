"""A starting host kills the processes that it left running before its restart, and nothing else."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kingdom.soldiers.processes.leftovers import kill_leftover_processes
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import HostScene, writes
from tests.patience import PATIENCE_SECONDS


@asynccontextmanager
async def process_with_home(home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process with this HOME until the end of the block."""
    process = await asyncio.create_subprocess_exec("/bin/sleep", "300", env={"HOME": str(home)})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def is_killed(process: asyncio.subprocess.Process) -> bool:
    return await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == -signal.SIGKILL


async def test_only_processes_whose_home_is_in_the_directory_of_the_host_are_killed(tmp_path: Path) -> None:
    mine = tmp_path / "host-a"
    async with (
        process_with_home(mine) as one,
        process_with_home(mine / "runs" / "wf-1") as two,
        process_with_home(tmp_path) as above,
        process_with_home(tmp_path / "host-a2") as beside,
        process_with_home(tmp_path / "elsewhere" / "host-a") as elsewhere,
    ):
        assert kill_leftover_processes(mine) == 2
        assert await is_killed(one)
        assert await is_killed(two)
        assert [each.returncode for each in (above, beside, elsewhere)] == [None] * 3
        assert kill_leftover_processes(mine) == 0


async def test_a_host_in_the_home_of_its_account_spares_the_other_processes_of_the_account(tmp_path: Path) -> None:
    code = "import sys, pathlib; from kingdom.soldiers.processes.leftovers import kill_leftover_processes as kill;"
    code += "sys.exit(kill(pathlib.Path(sys.argv[1])))"
    async with (
        process_with_home(tmp_path) as of_the_account,
        process_with_home(tmp_path / "runs" / "wf-1") as of_an_agent,
    ):
        host = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(tmp_path)), env={**os.environ, "HOME": str(tmp_path)}
        )
        assert await asyncio.wait_for(host.wait(), PATIENCE_SECONDS) == 1
        assert await is_killed(of_an_agent)
        assert of_the_account.returncode is None


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_a_starting_host_ends_processes_that_it_left_running_before(scene: HostScene) -> None:
    async with (
        process_with_home(scene.folders("host-a").home("wf-1")) as left,
        process_with_home(scene.folders("host-b").home("wf-1")) as of_another_host,
    ):
        await scene.start_host("host-a")
        assert await is_killed(left)
        assert of_another_host.returncode is None


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_a_starting_host_removes_the_lock_files_of_killed_gits_from_the_refs_of_runs(scene: HostScene) -> None:
    host = await scene.start_host("host-a")
    run = await scene.until(await scene.begin(writes("one")), WorkflowStatus.COMPLETED)
    await scene.stop_host(host)
    (checkpoint,) = run.checkpoints
    refs = scene.bare() / "refs"
    # An attempt at a checkpoint that was interrupted is repeated under another name.
    interrupted = refs / "kingdom" / "checkpoints" / f"{checkpoint.id}-interrupted" / f"{run.work_trees[0].id}.lock"
    locks = [interrupted, refs / "heads" / f"{run.work_trees[0].branch}.lock"]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    await scene.start_host("host-a")
    assert [lock for lock in locks if lock.exists()] == []
