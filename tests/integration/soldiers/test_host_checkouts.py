"""Changes of the checkouts of one run happen one after another, and after the run nothing of them is left."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.bus import Record
from kingdom.clock import utc_now
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host import host as hosting
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import register_host
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import VerificationStatus, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.modify import Modification, WorkChange
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import release_tree
from kingdom.workflow.records import TREES_KEPT, WORKFLOWS, load_workflow, save_step
from tests.integration.running import eventually
from tests.integration.soldiers.host_scene import ANNA, APP, LEASE, HostScene, task, work, writes
from tests.integration.soldiers.intercepted_agents import InterceptedAgents
from tests.integration.soldiers.sources import run
from tests.patience import PATIENCE_SECONDS

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
LIB = "lib"


class DelayedStop:
    """Delays the first stop of an agent until the test sets `may_end`."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self._met = False

    async def __call__(self) -> None:
        if not self._met:
            self._met = True
            await asyncio.wait_for(self.may_end.wait(), PATIENCE_SECONDS)


@ONE_BACKEND
async def test_a_checkout_is_not_removed_while_the_checks_of_its_run_continue(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("check")
    check = f"touch {point.is_there}; until test -e {point.may_go}; do sleep 0.02; done"
    workflow = await _begin_with_lib_for_later(scene, verify=(check,))
    await point.reached()
    await _remove_lib_from_the_run(scene, workflow)
    await _assert_release_waits(scene, workflow)
    point.release()
    await _assert_released_after(scene, workflow, answers.WorkVerified)


@ONE_BACKEND
async def test_a_checkout_is_not_removed_while_the_agent_of_its_run_is_stopped_before_the_checks(
    scene: HostScene,
) -> None:
    delayed_stop = DelayedStop()
    await scene.start_host(client=InterceptedAgents(ScriptedAgentClient(), before_stop=delayed_stop))
    workflow = await _begin_with_lib_for_later(scene)
    await scene.until_true(workflow, lambda now: now.works[0].verification.status is VerificationStatus.RUNNING)
    await _remove_lib_from_the_run(scene, workflow)
    # The engine would send this command only after the checks, but a host must not rely on that.
    await _release_lib_at_once(scene, workflow)
    await _assert_release_waits(scene, workflow)
    delayed_stop.may_end.set()
    await _assert_released_after(scene, workflow, answers.WorkVerified)


@ONE_BACKEND
async def test_a_checkout_is_removed_while_an_agent_is_at_work(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("one")
    workflow = await _begin_with_lib_for_later(scene, *point.steps)
    await point.reached()
    await _remove_lib_from_the_run(scene, workflow)
    await scene.until_true(workflow, lambda now: _lib_tree(now).status is WorkTreeStatus.RELEASED)
    assert not _lib(scene, workflow).exists()
    point.release()
    await scene.until(workflow, WorkflowStatus.COMPLETED)


@ONE_BACKEND
async def test_the_checkouts_of_a_moved_run_are_removed_and_its_files_are_kept(scene: HostScene) -> None:
    host = await scene.start_host()
    moved, stays = [await _prepared(scene) for _ in range(2)]
    await scene.stop_host(host)
    (scene.tree(moved) / "late.txt").write_text("never committed\n")
    await _place_on_another_host(scene, moved)
    await scene.start_host()
    await _until_nothing_is_left(scene, moved)
    rescued = run("for-each-ref", "--format=%(refname)", f"refs/kingdom/rescue/{moved.id}", cwd=scene.bare()).strip()
    assert run("show", f"{rescued}:late.txt", cwd=scene.bare()) == "never committed"
    assert (scene.tree(stays) / "README.md").exists()


@ONE_BACKEND
async def test_the_folders_of_an_ended_run_without_checkouts_are_removed_and_others_stay(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "_CLEANUP_SECONDS", 0.02)
    await scene.start_host()
    over = await scene.until(await scene.begin(work("talks", task()), git_refs=()), WorkflowStatus.COMPLETED)
    assert scene.space(over, over.works[0]).exists()
    waits = scene.folders().run((await scene.create_run(work("talks", task()))).id)
    waits.mkdir()
    await _rewrite(scene, over, lambda now: setattr(now, "ended_at", utc_now() - TREES_KEPT - timedelta(seconds=1)))
    await _until_nothing_is_left(scene, over)
    assert not scene.space(over, over.works[0]).exists()
    assert waits.exists()


@ONE_BACKEND
async def test_folders_of_unreadable_and_renamed_runs_are_kept_and_do_not_prevent_the_start(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "_CLEANUP_SECONDS", 0.02)
    host = await scene.start_host()
    renamed = await _prepared(scene)
    await scene.stop_host(host)
    before, after = scene.folders("host-a"), scene.folders("host-b")
    before.directory.rename(after.directory)
    after.run("wf-unreadable").mkdir()
    async with scene.bus.transaction() as transaction:
        odd = Record(kind=WORKFLOWS.name, id="wf-unreadable", state=WorkflowStatus.RUNNING, doc={"name": 7})
        await transaction.put(odd)
    await scene.start_host("host-b")

    async def looked() -> bool:
        return not after.run("wf-gone").exists()

    for _ in range(2):
        after.run("wf-gone").mkdir()
        await eventually(looked)
    assert after.run("wf-unreadable").exists()
    assert (scene.tree(renamed, "host-b") / "README.md").exists()


async def _prepared(scene: HostScene) -> Workflow:
    workflow = await lifecycle.prepare(scene.bus, (await scene.create_run(writes("one"))).id, actor=ANNA)
    return await scene.until(workflow, WorkflowStatus.READY)


async def _place_on_another_host(scene: HostScene, workflow: Workflow) -> None:
    await register_host(scene.bus, "host-b", 1, LEASE, instance="another")
    await _rewrite(scene, workflow, lambda now: setattr(now, "placement", Placement(host="host-b", epoch=2)))


async def _rewrite(scene: HostScene, workflow: Workflow, change: Callable[[Workflow], None]) -> None:
    async with scene.bus.transaction() as transaction:
        record, now = await load_workflow(transaction, workflow.id)
        change(now)
        await transaction.put(record.replace(doc=now.document()))


async def _until_nothing_is_left(scene: HostScene, workflow: Workflow) -> None:
    async def gone() -> bool:
        return not list(scene.folders().runs.glob(f"{workflow.id}*"))

    await eventually(gone)


async def _begin_with_lib_for_later(scene: HostScene, *steps: dict[str, Any], verify: tuple[str, ...] = ()) -> Workflow:
    """Begin a run that needs a second repository only in its second Work."""
    await scene.register_repository(LIB)
    first = work("one", task({"write": f"{APP}/one.txt"}, *steps), git_refs=_refs(APP), verify=verify)
    second = work("two", task({"write": f"{APP}/two.txt"}), git_refs=_refs(APP, LIB))
    return await scene.begin(first, second, git_refs=())


async def _remove_lib_from_the_run(scene: HostScene, workflow: Workflow) -> None:
    first, second = workflow.works
    changed = msgspec.structs.replace(second.definition, git_refs=_refs(APP))
    changes = (
        WorkChange(id=first.id, definition=first.definition),
        WorkChange(id=second.id, definition=changed),
    )
    await lifecycle.modify(scene.bus, workflow.id, Modification(works=changes), actor=ANNA)


async def _release_lib_at_once(scene: HostScene, workflow: Workflow) -> None:
    async with scene.bus.transaction() as transaction:
        record, now = await load_workflow(transaction, workflow.id)
        step = Step(now, at=utc_now())
        release_tree(step, _lib_tree(now))
        await save_step(transaction, step, record, ANNA)


async def _assert_release_waits(scene: HostScene, workflow: Workflow) -> None:
    async def accepted() -> bool:
        return commands.ReleaseWorkTree.__name__ in {record.doc["type"] for record in await scene.accepted()}

    await eventually(accepted)
    # A whole run takes longer than the removal of a checkout would.
    await scene.until(await scene.begin(writes("other")), WorkflowStatus.COMPLETED)
    assert _lib(scene, workflow).exists()
    assert await accepted()


async def _assert_released_after(scene: HostScene, workflow: Workflow, first: type[answers.HostAnswer]) -> None:
    await scene.until(workflow, WorkflowStatus.COMPLETED)
    await scene.until_all_answered()
    entries = await scene.logged(workflow, first, answers.WorkTreeReleased)
    assert [entry.type for entry in entries[:2]] == [first.__name__, answers.WorkTreeReleased.__name__]
    assert not _lib(scene, workflow).exists()


def _lib_tree(workflow: Workflow) -> WorkTree:
    (tree,) = [each for each in workflow.work_trees if each.ref.git_id == LIB]
    return tree


def _lib(scene: HostScene, workflow: Workflow) -> Path:
    return scene.folders().checkout(workflow.id, _lib_tree(workflow).id)


def _refs(*names: str) -> tuple[GitRef, ...]:
    return tuple(GitRef(git_id=name, base_branch="main") for name in names)
