"""The disk usage of a run is measured while its programs run, and a run beyond its quota is ended."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.files import disk_quota
from kingdom.soldiers.files.disk_quota import DEPTH_MAX, DiskQuota, DiskQuotaExceeded, DiskUsage
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import APP, HostScene, task, work
from tests.integration.soldiers.sources import run

MIB = 1 << 20
on_files = pytest.mark.parametrize("backend", ["files"], indirect=True)
FILL = "dd if=/dev/zero of={}/big.log bs=1M count={} 2>/dev/null"


def used(folder: Path) -> int:
    use = DiskUsage()
    use.add(folder)
    return use.bytes


def write(file: Path, size: int = MIB) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))


def quota(folder: Path, mib: int) -> DiskQuota:
    return DiskQuota(lambda: [folder, folder / "not-there"], mib)


def test_all_files_in_the_folders_count_with_their_allocated_blocks(tmp_path: Path) -> None:
    for name in ("a", "deep/b", "deep/deeper/c"):
        write(tmp_path / name)
    assert 3 * MIB <= used(tmp_path) < 4 * MIB
    assert quota(tmp_path, 4).describe_excess() == ""
    assert (
        quota(tmp_path, 2).describe_excess().startswith("the run uses 3 MiB of disk, and soldiers.disk_mb allows 2: ")
    )


def test_files_without_blocks_do_not_count(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    write(own / "file")
    write(other / "file", 5 * MIB)
    os.link(own / "file", own / "second-name")
    (own / "link").symlink_to(other)
    with (own / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(own / "pipe")
    assert used(own) < 2 * MIB


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_files_that_the_agent_cannot_read_count_and_stay_unchanged(tmp_path: Path, mode: int) -> None:
    write(tmp_path / "shut" / "inner" / "file", 2 * MIB)
    (tmp_path / "shut").chmod(mode)
    assert used(tmp_path) >= 2 * MIB
    assert (tmp_path / "shut").stat().st_mode & 0o777 == mode
    (tmp_path / "shut").chmod(0o700)


def test_too_many_files_and_too_deep_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEPTH_MAX + 1):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    assert f"folders nested more than {DEPTH_MAX} deep" in quota(tmp_path, 100).describe_excess()
    monkeypatch.setattr(disk_quota, "FILES_MAX", 50)
    assert "has more than 50 files" in quota(tmp_path, 100).describe_excess()


@pytest.mark.parametrize("refused", [".", "shut", "inner"])
def test_a_permission_that_is_removed_during_the_count_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """The tests may run as root, which needs no permission, so this test refuses the first access itself."""
    write(tmp_path / "shut" / "inner" / "file", 2 * MIB)
    refusals: list[str] = []

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse_first(name: Any, *arguments: Any, **named: Any) -> Any:
            if name == refused and len(refusals) < 3:
                refusals.append(name)
                raise PermissionError(errno.EACCES, "an agent has removed the permission", name)
            return call(name, *arguments, **named)

        return refuse_first

    for call in ("open", "stat"):
        monkeypatch.setattr(os, call, refusing(getattr(os, call)))
    assert 2 * MIB <= used(tmp_path) < 3 * MIB
    assert len(refusals) == 3


async def test_a_disk_usage_that_cannot_be_measured_counts_as_exceeded(tmp_path: Path) -> None:
    unmeasured = quota(tmp_path / ("x" * 300), 100)
    assert "the disk usage of the run cannot be measured" in await unmeasured.wait_until_exceeded()
    with pytest.raises(DiskQuotaExceeded, match="File name too long"):
        await unmeasured.check()


@pytest.fixture
async def host(scene: HostScene, monkeypatch: pytest.MonkeyPatch) -> HostScene:
    """A host that allows each run 8 MiB of disk, and measures it every 50 ms."""
    monkeypatch.setattr(disk_quota, "_PAUSE_SECONDS", 0.05)
    await scene.start_host(agent_environment=AgentEnvironment(profile=SandboxProfile.OFF, disk_mib=8))
    return scene


@on_files
@pytest.mark.parametrize("place", [APP, "$HOME", "."])
async def test_an_agent_that_fills_the_disk_is_ended_and_its_run_fails_with_the_quota(
    host: HostScene, place: str
) -> None:
    fills = task({"run": f"{FILL.format(place, 20)}; sleep 600"})
    failed = await host.until(await host.begin(work("fill", fills)), WorkflowStatus.FAILED)
    assert "MiB of disk, and soldiers.disk_mb allows 8: " in failed.reason
    assert host.processes("sleep") == []


@on_files
async def test_an_agent_below_the_disk_quota_is_not_stopped_and_a_quick_excess_is_found_before_the_commit(
    host: HostScene,
) -> None:
    below = task({"run": f"{FILL.format('.', 5)}; truncate -s 1G sparse; sleep 0.5"})
    await host.until(await host.begin(work("below", below)), WorkflowStatus.COMPLETED)
    # The file is written between two checks, and found by the check before the commit.
    quick = task({"run": FILL.format(".", 20)})
    failed = await host.until(await host.begin(work("quick", quick)), WorkflowStatus.FAILED)
    assert "soldiers.disk_mb allows 8: " in failed.reason


@on_files
@pytest.mark.parametrize("door", ["setup", "check"])
async def test_a_setup_script_or_a_check_that_fills_the_disk_is_ended(host: HostScene, door: str) -> None:
    fill = f"{FILL.format('.', 20)}; sleep 600"
    if door == "setup":
        source = host.folder / "sources" / APP
        (source / ".kingdom").mkdir()
        (source / ".kingdom" / "setup.sh").write_text(fill)
        run("add", "--all", cwd=source)
        run("commit", "--quiet", "-m", "setup", cwd=source)
    one = work("one", task({"answer": "done"}), verify=(fill,) if door == "check" else ())
    failed = await host.until(await host.begin(one), WorkflowStatus.FAILED)
    assert "soldiers.disk_mb allows 8: " in failed.reason
    assert "timeoutSeconds" not in failed.reason
