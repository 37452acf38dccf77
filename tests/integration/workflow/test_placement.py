"""Hosts register, are lost and return. Their runs continue where it is safe, and answers of a lost host are ignored."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kingdom.bus import Record
from kingdom.errors import IllegalTransition, Transient
from kingdom.workflow import lifecycle
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import known_hosts, mark_lost_hosts, register_host, renew_host, retire_host
from kingdom.workflow.model.messages import answers, commands, events
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.modify import Modification
from kingdom.workflow.model.steps.operations import Auto, Continue
from kingdom.workflow.records import HOSTS
from tests.contract.backends import BackendUnderTest
from tests.integration.workflow.scene import ANNA, LEASE, Scene, opened
from tests.unit.workflow.model.host import succeed
from tests.unit.workflow.model.scene import APP, LIB, task, template, without_costs, work

OVER = timedelta(0)
SAFE = GitRef(git_id="git-safe", base_branch="main")
WORKS = (work("one", task()), work("two", task()))


async def hosts(scene: Scene) -> dict[str, Host]:
    async with scene.bus.transaction() as transaction:
        return {host.id: host for host in await known_hosts(transaction)}


async def lose(scene: Scene, host: Host) -> None:
    """Expire the lease of a host, and let the engine check."""
    assert await renew_host(scene.bus, host, 0, OVER)
    assert [lost.id for lost in await mark_lost_hosts(scene.bus, LivenessMonitor())] == [host.id]
    await scene.settle()


async def in_second_work(scene: Scene, ref: GitRef) -> str:
    """Return a run with one checkpoint, whose agent works on its second Work."""
    if ref is SAFE:
        await scene.register_repositories(SAFE.git_id, checkpoint_remote="origin")
    run = await scene.create_run(template(*WORKS, git_refs=(ref,)))
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.until(run, commands.SendQuery, 1)
    return run


async def test_a_host_that_registers_is_up_and_its_epoch_only_grows(scene: Scene) -> None:
    first = await register_host(scene.bus, "host-a", 4, LEASE)
    again = await register_host(scene.bus, "host-a", 8, LEASE)
    assert (first.epoch, again.epoch, again.slots) == (1, 2, 8)
    assert await hosts(scene) == {"host-a": again}
    logged = [entry for entry in await scene.log() if entry.type == "HostRegistered"]
    assert [(entry.actor, entry.data["epoch"]) for entry in logged] == [("host-a", 1), ("host-a", 2)]


async def test_a_renewal_reports_how_busy_a_host_is_and_keeps_it_up(scene: Scene) -> None:
    host = await register_host(scene.bus, "host-a", 4, OVER)
    assert await renew_host(scene.bus, host, 3, LEASE)
    assert await mark_lost_hosts(scene.bus, LivenessMonitor()) == []
    assert (await hosts(scene))["host-a"].busy == 3


async def test_a_host_that_retires_is_lost_at_once_unless_it_has_registered_again(scene: Scene) -> None:
    first = await register_host(scene.bus, "host-a", 4, LEASE)
    second = await register_host(scene.bus, "host-a", 4, LEASE)
    await retire_host(scene.bus, first)
    assert (await hosts(scene))["host-a"].status is HostStatus.UP
    await retire_host(scene.bus, second)
    await retire_host(scene.bus, second)
    assert (await hosts(scene))["host-a"].status is HostStatus.LOST
    assert [entry.type for entry in await scene.log()].count("HostLost") == 1


@pytest.mark.both_stores
async def test_a_host_with_an_expired_lease_is_lost_once_with_several_engines(backend: BackendUnderTest) -> None:
    async with opened(backend, engines=2) as scene, opened(backend) as other:
        for number in range(5):
            await register_host(scene.bus, f"host-{number}", 4, OVER)
        looks = (mark_lost_hosts(bus, LivenessMonitor()) for bus in (scene.bus, other.bus) * 3)
        found = [host.id for lost in await asyncio.gather(*looks) for host in lost]
        await scene.settle()
        assert sorted(found) == [f"host-{number}" for number in range(5)]
        logged = [entry.data["host"] for entry in await scene.log() if entry.type == "HostLost"]
        assert sorted(logged) == sorted(found)


async def test_the_run_of_a_lost_host_continues_elsewhere_from_its_last_checkpoint(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, SAFE)
    await scene.start_host("host-b")
    scene.hosts["host-a"].open.clear()
    await lose(scene, lost)
    workflow = await scene.show(run)
    assert (workflow.placement, workflow.status) == (Placement(host="host-b", epoch=2), WorkflowStatus.RESUMING)
    [displaced] = await scene.logged(run, events.WorkflowDisplaced)
    assert displaced.data == {"workflowId": run, "host": "host-a", "epoch": 1, "reason": "host-a is lost"}
    await scene.succeed(run, commands.PrepareResources)
    roll_back = await scene.until(run, commands.RollBack)
    assert (roll_back.host, roll_back.checkpoint_id) == ("host-b", f"{run}-w1-c1")
    assert roll_back.commits == {f"{run}-tree1": f"commit-{run}-w1-c1"}
    ended = await scene.finish(run)
    assert (ended.status, len(ended.checkpoints)) == (WorkflowStatus.COMPLETED, 2)


async def test_a_run_without_a_remote_for_its_checkpoints_waits_for_its_host(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    await scene.start_host("host-b")
    before = await scene.show(run)
    scene.hosts["host-a"].open.clear()
    await lose(scene, lost)
    assert await scene.show(run) == before
    await scene.start_host("host-a")
    workflow = await scene.show(run)
    assert (workflow.placement, workflow.status) == (Placement(host="host-a", epoch=2), WorkflowStatus.RUNNING)
    start = await scene.until(run, commands.StartAgent)
    assert (start.session, start.work_id) == ("session-1", f"{run}-w2")
    await scene.succeed(run, commands.StartAgent)
    assert (await scene.until(run, commands.SendQuery)).reconcile
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED


async def test_a_run_that_has_not_begun_to_run_can_move_without_a_remote(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await scene.create_run(template(*WORKS, git_refs=(APP,)))
    await lifecycle.prepare(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.finish(run)
    await scene.start_host("host-b")
    await lose(scene, lost)
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    assert (await scene.until(run, commands.PrepareResources)).host == "host-b"
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED


async def test_answers_of_an_earlier_epoch_are_logged_as_ignored_and_only_their_cost_counts(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    old = scene.pick(run, commands.SendQuery)
    await scene.start_host("host-a")
    before = await scene.show(run)
    await scene.publish_answers(run, *succeed(old))
    after = await scene.show(run)
    assert without_costs(after) == without_costs(before)
    assert after.cost_usd == before.cost_usd + 0.25
    corrected = (await scene.logged(run, events.WorkflowCostCorrected))[-1]
    assert corrected.data["costUsd"] == after.cost_usd
    entry = (await scene.logged(run, answers.QueryResponded))[-1]
    assert entry.actor == "host-a"
    assert entry.data["ignored"] == "host-a, epoch 1 lost the run, which is placed on host-a, epoch 2"
    assert entry.data["taskId"] == old.task_id


async def test_an_answer_about_a_missing_run_is_logged_as_ignored(scene: Scene) -> None:
    await scene.start_host("host-a")
    reply = answers.AgentStopped(work_id="wf-none-w1", host="host-a", epoch=1, attempt=1)
    await scene.publish_answers("wf-none", reply)
    [entry] = await scene.logged("wf-none")
    assert entry.data["ignored"].startswith("there is no workflow 'wf-none'")


async def test_only_runs_with_pushed_checkpoints_continue_on_the_next_host_that_registers(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    safe = await in_second_work(scene, SAFE)
    bound = await in_second_work(scene, APP)
    before = [await scene.show(run) for run in (safe, bound)]
    scene.hosts["host-a"].open.clear()
    await lose(scene, lost)
    assert [await scene.show(run) for run in (safe, bound)] == before
    await scene.start_host("host-b")
    assert (await scene.show(safe)).placement == Placement(host="host-b", epoch=2)
    assert (await scene.show(bound)).placement == Placement(host="host-a", epoch=1)
    assert (await scene.finish(safe)).status is WorkflowStatus.COMPLETED


async def test_a_paused_run_stays_with_its_lost_host_and_can_be_resumed_elsewhere(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, SAFE)
    await lifecycle.pause(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    await scene.start_host("host-b")
    scene.hosts["host-a"].open.clear()
    await lose(scene, lost)
    assert (await scene.show(run)).placement == Placement(host="host-a", epoch=1)
    with pytest.raises(IllegalTransition, match="PAUSED and its session is lost"):
        await lifecycle.resume(scene.bus, run, Continue(), actor=ANNA)
    resumed = await lifecycle.resume(scene.bus, run, Auto(), actor=ANNA)
    assert (resumed.status, resumed.placement) == (WorkflowStatus.RESUMING, Placement(host="host-b", epoch=2))
    await scene.settle()
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED


async def test_a_paused_run_does_not_change_when_its_host_restarts(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    await lifecycle.pause(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    before = await scene.show(run)
    await scene.start_host("host-a")
    assert await scene.show(run) == before
    scene.pick(run, commands.SendQuery)
    await lifecycle.resume(scene.bus, run, Continue(), actor=ANNA)
    await scene.settle()
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED


async def test_a_run_that_only_its_lost_host_can_continue_is_not_resumed_before_the_host_is_back(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    await lifecycle.pause(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    await scene.start_host("host-b")
    await lose(scene, lost)
    before = await scene.show(run)
    with pytest.raises(Transient, match=r"belongs to host host-a, which is lost.*`kingdom role host --name host-a`"):
        await lifecycle.resume(scene.bus, run, Auto(), actor=ANNA)
    assert await scene.show(run) == before
    scene.hosts["host-a"].open.clear()
    await scene.start_host("host-a")
    await lifecycle.resume(scene.bus, run, Auto(), actor=ANNA)
    await scene.settle()
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED


async def test_a_running_run_of_a_lost_host_cannot_be_started_again(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, SAFE)
    await lose(scene, lost)
    before = await scene.show(run)
    # A host that is up, but not known to the engine yet.
    unknown = Record(
        kind=HOSTS.name, id="host-b", state="UP", doc=msgspec.to_builtins(Host(id="host-b", epoch=1, slots=4))
    )
    async with scene.bus.transaction() as transaction:
        await transaction.put(unknown)
    with pytest.raises(IllegalTransition, match="RUNNING: cannot start it"):
        await lifecycle.start(scene.bus, run, actor=ANNA)
    assert await scene.show(run) == before


async def test_a_release_that_a_host_did_not_confirm_is_repeated_when_it_restarts(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await scene.create_run(template(*WORKS, git_refs=(APP, LIB)))
    await lifecycle.prepare(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.finish(run)
    await lifecycle.modify(scene.bus, run, Modification(git_refs=(APP,)), actor=ANNA)
    await scene.settle()
    first = scene.pick(run, commands.ReleaseWorkTree)
    await scene.start_host("host-a")
    again = scene.pick(run, commands.ReleaseWorkTree)
    assert (first.epoch, again.epoch, again.work_tree_id) == (1, 2, first.work_tree_id)
    await scene.publish_answers(run, *succeed(again))
    workflow = await scene.show(run)
    assert [tree.status for tree in workflow.work_trees] == [WorkTreeStatus.READY, WorkTreeStatus.RELEASED]


@pytest.mark.parametrize(
    ("use_case", "end"), [(lifecycle.cancel, WorkflowStatus.CANCELLED), (lifecycle.pause, WorkflowStatus.PAUSED)]
)
async def test_a_request_to_a_run_of_a_lost_host_takes_effect_at_once(
    scene: Scene, use_case: Any, end: WorkflowStatus
) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    await lose(scene, lost)
    assert (await use_case(scene.bus, run, actor=ANNA)).status is end
    await scene.start_host("host-a")
    assert (await scene.show(run)).status is end


@pytest.mark.parametrize(
    ("use_case", "end"), [(lifecycle.cancel, WorkflowStatus.CANCELLED), (lifecycle.pause, WorkflowStatus.PAUSED)]
)
async def test_a_pending_request_to_a_run_takes_effect_when_its_host_is_lost(
    scene: Scene, use_case: Any, end: WorkflowStatus
) -> None:
    lost = await scene.start_host("host-a")
    run = await in_second_work(scene, APP)
    await use_case(scene.bus, run, actor=ANNA)
    await scene.settle()
    assert (await scene.show(run)).status is WorkflowStatus.RUNNING
    await lose(scene, lost)
    assert (await scene.show(run)).status is end


async def test_a_new_run_is_not_given_to_a_lost_host(scene: Scene) -> None:
    lost = await scene.start_host("host-a")
    await lose(scene, lost)
    run = await scene.create_run(template(*WORKS, git_refs=(APP,)))
    with pytest.raises(Transient, match="no soldier host is up"):
        await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.start_host("host-b")
    started = await lifecycle.start(scene.bus, run, actor=ANNA)
    assert started.placement == Placement(host="host-b", epoch=1)


async def test_all_runs_of_a_lost_host_are_placed_again_however_many_there_are(scene: Scene) -> None:
    lost = await scene.start_host("host-a", slots=200)
    runs = [await scene.create_run(template(work("only", task()), git_refs=(APP,))) for _ in range(110)]
    await asyncio.gather(*(lifecycle.prepare(scene.bus, run, actor=ANNA) for run in runs))
    await scene.settle()
    await scene.start_host("host-b", obeys=True)
    scene.hosts["host-a"].open.clear()
    await lose(scene, lost)
    shown = [await scene.show(run) for run in runs]
    assert {workflow.status for workflow in shown} == {WorkflowStatus.READY}
    assert {workflow.placement for workflow in shown} == {Placement(host="host-b", epoch=2)}
