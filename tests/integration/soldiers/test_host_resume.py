"""A failed run continues from each of its checkpoints: later work is rescued, rolled back, and done again."""

from pathlib import Path

import pytest

from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Auto, FromBase, FromCheckpoint, ResumeFrom
from kingdom.workflow.records import DOCUMENTS
from tests.integration.soldiers.host_barriers import Barrier, publishes
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, writes
from tests.integration.soldiers.sources import files_of, run

pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)
NAMES = ("one", "two", "three")


@pytest.mark.parametrize("back_to", ["base", "first", "second", "auto"])
async def test_a_failed_run_continues_from_each_of_its_checkpoints(scene: HostScene, back_to: str) -> None:
    kept = {"base": 0, "first": 1}.get(back_to, 2)
    barrier = Barrier(lambda transaction: publishes(transaction, answers.RolledBack.__name__))
    await scene.start_host(wrap=barrier.wrap)
    failed = await _failed_run(scene)
    assert failed.reason.endswith("failed with exit code 7")
    assert files_of(scene.tree(failed))["three.txt"] == "by three\n"
    before = [work.tasks[0].report.file_path for work in failed.works]

    await lifecycle.resume(scene.bus, failed.id, _how(failed, back_to), actor=ANNA)
    await barrier.reached()
    assert files_of(scene.tree(failed)) == _files_after(kept)
    assert run("rev-parse", "HEAD", cwd=scene.tree(failed)) == _commit(scene, failed, kept)
    assert [scene.space(failed, work).exists() for work in failed.works] == [index < kept for index in range(3)]
    barrier.open()
    completed = await scene.until(failed, WorkflowStatus.COMPLETED)

    assert files_of(scene.tree(completed)) == _files_after(3)
    assert await _sent_again(scene, completed) == [work.tasks[0].id for work in completed.works[kept:]]
    assert await _rescued(scene, completed) == {**_files_after(3), "one.txt": "overwritten\n"}
    for index, work in enumerate(completed.works):
        report = work.tasks[0].report
        assert report.versions == [path for path in [before[index]] if path and index >= kept]
        assert [await _text(scene, path) for path in report.versions] == [f"# Report of {NAMES[index]}\n"] * len(
            report.versions
        )
        earlier = [Path(each.tasks[0].report.file_path).name for each in completed.works[:index]]
        assert sorted(path.name for path in (scene.space(completed, work) / "reports").iterdir()) == sorted(earlier)


async def _failed_run(scene: HostScene) -> Workflow:
    """Run three Works. The last one fails once, and leaves a new and a changed file uncommitted."""
    once = scene.folder / "failed-once"
    fails_once = f"test -e {once} || {{ echo overwritten > {APP}/one.txt; touch {once}; exit 7; }}"
    workflow = await scene.begin(writes("one"), writes("two"), writes("three", {"run": fails_once}))
    return await scene.until(workflow, WorkflowStatus.FAILED)


def _how(workflow: Workflow, back_to: str) -> ResumeFrom:
    match back_to:
        case "auto":
            return Auto()
        case "base":
            return FromBase()
    return FromCheckpoint(workflow.checkpoints[("first", "second").index(back_to)].id)


def _files_after(works: int) -> dict[str, str]:
    return {"README.md": f"# {APP}\n", **{f"{name}.txt": f"by {name}\n" for name in NAMES[:works]}}


def _commit(scene: HostScene, workflow: Workflow, kept: int) -> str:
    if kept:
        return workflow.checkpoints[kept - 1].commits[workflow.work_trees[0].id]
    return run("rev-parse", "main", cwd=scene.folder / "sources" / APP)


async def _sent_again(scene: HostScene, workflow: Workflow) -> list[str]:
    """Return the Tasks that were sent after the resume, and check that its event names the Work of the first one."""
    entries = await scene.logged(workflow, events.WorkflowResumed, events.QuerySent)
    resumed = next(index for index, entry in enumerate(entries) if entry.type == events.WorkflowResumed.__name__)
    sent = entries[resumed + 1 :]
    assert entries[resumed].data["fromWorkId"] == sent[0].data["workId"]
    return [entry.data["taskId"] for entry in sent]


async def _rescued(scene: HostScene, workflow: Workflow) -> dict[str, str]:
    """Return the files that the rollback has saved under its rescue ref."""
    (rolled_back,) = await scene.logged(workflow, answers.RolledBack)
    (ref,) = rolled_back.data["rescueRefs"]
    assert ref.startswith(f"refs/kingdom/rescue/{workflow.id}/")
    names = run("ls-tree", "--name-only", ref, cwd=scene.bare()).splitlines()
    return {name: run("show", f"{ref}:{name}", cwd=scene.bare()) + "\n" for name in names}


async def _text(scene: HostScene, file_path: str) -> str:
    """Return a report from the store."""
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(DOCUMENTS.name, Path(file_path).stem)
    assert record is not None
    return str(record.doc["text"])
