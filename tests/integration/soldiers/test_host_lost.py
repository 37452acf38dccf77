"""A lost, killed or ended host: its runs continue elsewhere or with it, and its later answers do not count."""

import signal

import pytest

from kingdom.bus import LogEntry
from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.template import WorkDefinition
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import QueryStatus, WorkflowStatus
from tests.contract.processes import stop_unlocked
from tests.integration.processes import Child
from tests.integration.running import eventually
from tests.integration.soldiers.host_scene import APP, HostScene, WaitPoint, task, work, writes
from tests.integration.soldiers.processes import until_none
from tests.integration.soldiers.sources import files_of

# These tests stop and kill processes that use the store.
pytestmark = pytest.mark.both_stores
ONE_BACKEND = pytest.mark.parametrize("backend", ["postgres"], indirect=True)
FILES = {"README.md": f"# {APP}\n", "one.txt": "by one\n", "two.txt": "by two\n"}


async def test_a_run_continues_elsewhere_from_its_last_checkpoint_and_the_lost_host_changes_nothing(
    scene: HostScene,
) -> None:
    await scene.share_checkpoints()
    lost = await scene.start_child("host-a")
    point = scene.wait_point("two")
    workflow = await scene.begin(writes("one"), writes("two", *point.steps))
    await point.reached()
    await scene.start_host("host-b")

    await stop_unlocked(lost.process.pid, scene.backend)
    await scene.shorten_lease("host-a")
    await scene.until_lost("host-a")
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)

    assert completed.placement is not None
    assert completed.placement.host == "host-b"
    assert [work.agent.attempt for work in completed.works] == [1, 2]
    assert files_of(scene.tree(completed, "host-b")) == FILES
    (report,) = (scene.space(completed, completed.works[1], "host-b") / "reports").iterdir()
    assert report.read_text() == "# Report of one\n"
    assert scene.processes("host-a") != []

    await _continue_frozen_host(scene, lost, completed)


@ONE_BACKEND
async def test_the_pending_answer_of_a_lost_host_is_logged_and_ignored(scene: HostScene) -> None:
    await scene.share_checkpoints()
    reply = answers.QueryResponded
    lost = await scene.start_child("host-a", freezes_at=[reply.__name__, 2])
    workflow = await scene.begin(writes("one"), writes("two"))
    await lost.wait_for_line("frozen")
    await scene.start_host("host-b")
    await scene.shorten_lease("host-a")
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    before = await scene.record(completed)

    await _continue_frozen_host(scene, lost, completed)

    late: list[LogEntry] = []

    async def is_logged() -> bool:
        late[:] = [entry for entry in await scene.logged(workflow, reply) if entry.data.get("ignored")]
        return bool(late)

    await eventually(is_logged)
    await scene.settle()
    assert await scene.record(completed) == before
    assert [(entry.actor, entry.data["taskId"]) for entry in late] == [("host-a", completed.works[1].tasks[0].id)]
    assert "lost the run, which is placed on host-b, epoch 2" in late[0].data["ignored"]


@ONE_BACKEND
async def test_a_run_whose_checkpoints_stay_on_its_host_waits_until_the_host_is_back(scene: HostScene) -> None:
    lost = await scene.start_child("host-a")
    point = scene.wait_point("two")
    workflow = await scene.begin(writes("one"), _appends_once("two", point))
    await point.reached()
    await scene.start_host("host-b")

    await stop_unlocked(lost.process.pid, scene.backend)
    await scene.shorten_lease("host-a")
    await scene.until_lost("host-a")
    await scene.settle()
    waiting = await scene.show(workflow)
    assert waiting.status is WorkflowStatus.RUNNING
    assert waiting.placement == workflow.placement

    lost.signal(signal.SIGCONT)
    await scene.until_registered("host-a", 2)
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert not scene.folders("host-b").run(workflow.id).exists()
    _assert_no_step_was_repeated(scene, completed, completed.works[1])


async def test_a_killed_host_leaves_no_process_and_continues_after_the_last_finished_step(scene: HostScene) -> None:
    killed = await scene.start_child("host-a")
    await _assert_continues_after(scene, killed, signal.SIGKILL)


@ONE_BACKEND
async def test_a_host_that_is_asked_to_end_leaves_no_process_and_continues_when_it_is_back(scene: HostScene) -> None:
    ended = await scene.start_child("host-a")
    await _assert_continues_after(scene, ended, signal.SIGTERM)
    assert ended.process.returncode == 0


async def _assert_continues_after(scene: HostScene, host: Child, end: signal.Signals) -> None:
    """End a host in the middle of a query. After its restart it must continue in the same session."""
    point = scene.wait_point("one")
    workflow = await scene.begin(_appends_once("one", point), writes("two"))
    await point.reached()
    session = (await scene.show(workflow)).works[0].agent.session

    host.signal(end)
    await host.ends()
    await until_none(scene.mark)
    await scene.start_child("host-a")
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)

    assert [entry.data["finding"] for entry in await scene.logged(workflow, answers.QueryReconciled)] == [
        TranscriptFinding.UNFINISHED
    ]
    assert completed.works[0].agent.session == session
    _assert_no_step_was_repeated(scene, completed, completed.works[0])


def _appends_once(name: str, point: WaitPoint) -> WorkDefinition:
    """Return a Work whose file shows if one of its steps was executed twice."""
    path = f"{APP}/{name}.txt"
    return work(name, task({"append": path, "text": "before\n"}, *point.steps, {"append": path, "text": "after\n"}))


def _assert_no_step_was_repeated(scene: HostScene, workflow: Workflow, counted: Work) -> None:
    name = counted.definition.name
    assert (scene.tree(workflow) / f"{name}.txt").read_text() == "before\nafter\n"
    steps = [entry["step"] for entry in scene.transcript(counted) if "step" in entry]
    assert steps == [1, 2, 3, 4]
    assert counted.tasks[0].query.status is QueryStatus.RESPONDED


async def _continue_frozen_host(scene: HostScene, lost: Child, workflow: Workflow) -> None:
    """Let a frozen host continue: its agents end, it registers again, and the record of its former run is unchanged."""
    before = await scene.record(workflow)
    lost.signal(signal.SIGCONT)
    await scene.until_registered("host-a", 2)

    async def alone() -> bool:
        return not scene.processes("host-a")

    await eventually(alone)
    await scene.settle()
    assert await scene.record(workflow) == before
