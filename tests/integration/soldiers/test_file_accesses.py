"""Outside of a sandbox, only one module opens files that agents can change, and only one removes them."""

import json
from pathlib import Path

import pytest

from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import FromBase
from tests.integration.processes import child
from tests.integration.running import eventually
from tests.integration.soldiers.accesses_child import SESSION
from tests.integration.soldiers.file_accesses import Access, noted_accesses
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.integration.soldiers.sources import run as run_git

OPENING = {"kingdom.soldiers.files.agent_files", "kingdom.soldiers.files.removal"}


@pytest.mark.parametrize("backend", ["files", "postgres"], indirect=True)
async def test_in_a_whole_run_no_other_module_opens_files_of_agents(scene: HostScene) -> None:
    files, notes, may_pass = scene.folder / "files", scene.folder / "notes", scene.folder / "files" / "may-pass"
    (files / APP).mkdir(parents=True)
    (files / APP / ".env").write_text("TOKEN=x\n")
    add_setup(scene.folder / "sources" / APP)
    await scene.start_child("host-a", files=str(files), notes=str(notes))
    passing = task({"result": {"status": "success", "summary": "done"}}, {"run": f"test -f {may_pass}"})
    run = await scene.begin(writes("first"), work("second", passing, verify=("test -f app/.env",)))
    await scene.until(run, WorkflowStatus.FAILED)
    may_pass.touch()
    await lifecycle.resume(scene.bus, run.id, FromBase(), actor=ANNA)
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert (done.works[1].result or {})["summary"] == "done"
    await lifecycle.release(scene.bus, run.id, actor=ANNA)

    async def gone() -> bool:
        return not scene.folders().run(run.id).exists()

    await eventually(gone)
    accesses = noted_accesses(notes)
    assert {access for access in accesses if access.who not in OPENING} == set()
    assert {access.who for access in accesses} >= OPENING
    opened = {access.file for access in accesses if access.who in OPENING and access.what == "open"}
    assert {".worktreeinclude", ".env", "result.json"} <= opened


async def test_reports_transcripts_settings_and_listings_open_nothing_else(tmp_path: Path) -> None:
    accesses = await accesses_in(tmp_path, plainly=False)
    assert {access.who for access in accesses} == {"kingdom.soldiers.files.agent_files"}
    assert {"result.json", f".claude/projects/p/{SESSION}.jsonl"} <= {access.file for access in accesses}


async def test_a_reader_that_opens_a_path_by_itself_is_found(tmp_path: Path) -> None:
    accesses = await accesses_in(tmp_path, plainly=True)
    assert Access("tests.integration.soldiers.accesses_child", "open", "result.json") in accesses


async def accesses_in(directory: Path, *, plainly: bool) -> set[Access]:
    """Return the accesses of a process that handles files of agents."""
    folders = HostFolders(directory)
    space, home = folders.work_space("general", "wf-1-w1-space1"), folders.home("wf-1")
    space.mkdir(parents=True)
    (space / "result.json").write_text("{}")
    own = home / ".claude" / "projects" / "p" / f"{SESSION}.jsonl"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"type": "user", "uuid": "u1", "id": "toolu_1"}) + "\n")
    notes = directory / "notes"
    async with child(
        "integration.soldiers.accesses_child", directory=str(directory), notes=str(notes), plainly=plainly
    ):
        return noted_accesses(notes)


def add_setup(source: Path) -> None:
    """Give a repository a setup script and a file that it requests."""
    (source / ".worktreeinclude").write_text(".env\n")
    (source / ".gitignore").write_text(".env\n")
    (source / ".kingdom").mkdir()
    (source / ".kingdom" / "setup.sh").write_text("test -f .env\n")
    run_git("add", "--all", cwd=source)
    run_git("commit", "--quiet", "-m", "outfit", cwd=source)
