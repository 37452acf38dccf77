"""What changes the checkouts of one run happens one after another; agents at work wait for none of it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.clock import utc_now
from kingdom.soldiers.scripted.client import ScriptedAgents
from kingdom.workflow import lifecycle
from kingdom.workflow.model import answers, commands
from kingdom.workflow.model.machine import CheckpointStatus, WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.modify import Modification, WorkChange
from kingdom.workflow.model.proceed import release_tree
from kingdom.workflow.model.refs import GitRef
from kingdom.workflow.model.step import Step
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.model.worktree import WorkTree
from kingdom.workflow.records import load_workflow, save_step
from tests.integration.running import PATIENCE_SECONDS, eventually
from tests.integration.soldiers.hindered_agents import HinderedAgents
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
LIB = "lib"


class Reluctance:
    """Lets the first agent that is stopped end only when it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self._met = False

    async def __call__(self) -> None:
        if not self._met:
            self._met = True
            await asyncio.wait_for(self.may_end.wait(), PATIENCE_SECONDS)


@ONE_BACKEND
async def test_a_checkout_is_not_removed_while_the_checks_of_its_run_go_on(scene: HostScene) -> None:
    await scene.start_host()
    stay = scene.stay("check")
    check = f"touch {stay.is_there}; until test -e {stay.may_go}; do sleep 0.02; done"
    workflow = await _begin_with_lib_for_later(scene, verify=(check,))
    await stay.reached()
    await _take_lib_out(scene, workflow)
    await _assert_release_waits(scene, workflow)
    stay.let_go()
    await _assert_released_after(scene, workflow, answers.WorkVerified)


@ONE_BACKEND
async def test_a_checkout_is_not_removed_while_a_checkpoint_is_being_taken(scene: HostScene) -> None:
    reluctance = Reluctance()
    await scene.start_host(client=HinderedAgents(ScriptedAgents(), before_stop=reluctance))
    workflow = await _begin_with_lib_for_later(scene)
    await scene.until_true(workflow, lambda now: now.works[0].checkpointing.status is CheckpointStatus.TAKING)
    await _take_lib_out(scene, workflow)
    # The engine would wait with it, but a host has no right to rely on that.
    await _release_lib_at_once(scene, workflow)
    await _assert_release_waits(scene, workflow)
    reluctance.may_end.set()
    await _assert_released_after(scene, workflow, answers.CheckpointCreated)


@ONE_BACKEND
async def test_a_checkout_is_removed_while_an_agent_is_at_work(scene: HostScene) -> None:
    await scene.start_host()
    stay = scene.stay("one")
    workflow = await _begin_with_lib_for_later(scene, *stay.steps)
    await stay.reached()
    await _take_lib_out(scene, workflow)
    await scene.until_true(workflow, lambda now: _lib_tree(now).status is WorkTreeStatus.RELEASED)
    assert not _lib(scene, workflow).exists()
    stay.let_go()
    await scene.until(workflow, WorkflowStatus.COMPLETED)


async def _begin_with_lib_for_later(scene: HostScene, *steps: dict[str, Any], verify: tuple[str, ...] = ()) -> Workflow:
    """Begin a run that needs a second repository only in its second Work."""
    await scene.know_repository(LIB)
    first = work("one", task({"write": f"{APP}/one.txt"}, *steps), git_refs=_refs(APP), verify=verify)
    second = work("two", task({"write": f"{APP}/two.txt"}), git_refs=_refs(APP, LIB))
    return await scene.begin(first, second, git_refs=())


async def _take_lib_out(scene: HostScene, workflow: Workflow) -> None:
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
    return scene.folders().tree(workflow.id, _lib_tree(workflow).id)


def _refs(*names: str) -> tuple[GitRef, ...]:
    return tuple(GitRef(git_id=name, base_branch="main") for name in names)
