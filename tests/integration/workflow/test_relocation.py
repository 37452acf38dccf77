"""How the runs of lost hosts are moved: only as many as there are slots, no run of a healthy host, and no run twice."""

from datetime import timedelta

from kingdom.bus import Record
from kingdom.workflow import lifecycle
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import mark_lost_hosts, renew_host
from kingdom.workflow.model.messages import commands, events
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS, event_envelope, run_transaction
from kingdom.workflow.relocation import displace_stranded_runs
from tests.integration.workflow.scene import ANNA, LEASE, Scene
from tests.unit.workflow.model.scene import APP, task, template, work

OVER = timedelta(0)
SMALL = template(work("only", task()), git_refs=(APP,))
MORE_THAN_AT_ONCE = 205


async def preparing(scene: Scene, count: int) -> list[str]:
    """Return runs whose checkouts are being prepared."""
    runs = [await scene.create_run(SMALL) for _ in range(count)]
    for run in runs:
        await lifecycle.prepare(scene.bus, run, actor=ANNA)
    await scene.settle()
    return runs


async def placed(scene: Scene, runs: list[str], host: str) -> list[str]:
    shown = [await scene.show(run) for run in runs]
    return [run.id for run in shown if run.placement and run.placement.host == host]


async def stored(scene: Scene, run: str) -> Record:
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run)
    assert record
    return record


async def test_the_first_host_that_is_back_gets_as_many_stranded_runs_as_it_has_free_slots(scene: Scene) -> None:
    lost = await scene.start_host("host-a", slots=10)
    runs = await preparing(scene, 5)
    assert await renew_host(scene.bus, lost, 0, OVER)
    assert len(await mark_lost_hosts(scene.bus, LivenessMonitor())) == 1
    await scene.settle()
    back = await scene.start_host("host-b", slots=2)
    assert len(await placed(scene, runs, "host-b")) == 2
    for busy, moved in ((2, 2), (1, 3), (0, 5)):
        assert await renew_host(scene.bus, back, busy, LEASE)
        await run_transaction(scene.bus, displace_stranded_runs)
        await scene.settle()
        assert len(await placed(scene, runs, "host-b")) == moved


async def test_the_runs_of_a_host_that_is_back_take_its_slots_before_those_of_others(scene: Scene) -> None:
    first = await scene.start_host("host-a", slots=10)
    others = await preparing(scene, 3)
    second = await scene.start_host("host-b", slots=10)
    assert await renew_host(scene.bus, first, 10, LEASE)
    own = await preparing(scene, 3)
    assert await placed(scene, own, "host-b") == own
    for host in (first, second):
        assert await renew_host(scene.bus, host, 0, OVER)
    assert len(await mark_lost_hosts(scene.bus, LivenessMonitor())) == 2
    await scene.settle()
    await scene.start_host("host-b", slots=4)
    assert {(await scene.show(run)).placement for run in own} == {Placement(host="host-b", epoch=2)}
    assert len(await placed(scene, others, "host-b")) == 1


async def test_a_loss_that_is_noticed_after_the_host_restarted_does_not_interrupt_its_runs(scene: Scene) -> None:
    await scene.start_host("host-a")
    again = await scene.start_host("host-a")
    [run] = await preparing(scene, 1)
    for late in (
        events.HostLost(host="host-a", epoch=1),
        events.HostRegistered(host="host-a", epoch=1, slots=4),
        events.HostRunsLeft(host="host-a", epoch=1, reason="old", after=""),
    ):
        await scene.bus.publish(event_envelope(late, "Host", "host-a"))
    await scene.settle()
    assert again.epoch == 2
    assert await scene.logged(run, events.WorkflowDisplaced) == []
    assert (await scene.show(run)).placement == Placement(host="host-a", epoch=1)


async def test_a_run_is_indexed_by_its_host_only_until_it_ends(scene: Scene) -> None:
    await scene.start_host("host-a")
    [run] = await preparing(scene, 1)
    assert (await stored(scene, run)).indexed == {"host": "host-a"}
    await scene.finish(run)
    await lifecycle.cancel(scene.bus, run, actor=ANNA)
    assert (await stored(scene, run)).indexed == {}
    assert (await scene.show(run)).placement == Placement(host="host-a", epoch=1)


async def put_copies(scene: Scene, run: str, count: int, **changes: object) -> None:
    """Store copies of a stopped run, with smaller ids."""
    record = await stored(scene, run)
    async with scene.bus.transaction() as transaction:
        for number in range(count):
            copy_id = f"aa-{number:04d}"
            await transaction.put(record.replace(version=0, id=copy_id, doc={**record.doc, "id": copy_id, **changes}))


async def test_the_last_of_very_many_runs_continues_when_its_host_restarts(scene: Scene) -> None:
    await scene.start_host("host-a")
    [run] = await preparing(scene, 1)
    quiet = Workflow.read((await stored(scene, run)).doc)
    quiet.work_trees.clear()
    trees = quiet.document()["workTrees"]
    await put_copies(scene, run, MORE_THAN_AT_ONCE, workTrees=trees)
    scene.hosts["host-a"].open.clear()
    await scene.start_host("host-a")
    assert (await scene.show(run)).placement == Placement(host="host-a", epoch=2)
    assert [entry.data["after"] for entry in await scene.log() if entry.type == "HostRunsLeft"] == ["aa-0199"]
    scene.pick(run, commands.PrepareResources)


async def test_an_unreadable_run_does_not_prevent_others_from_continuing(scene: Scene) -> None:
    await scene.start_host("host-a")
    [run] = await preparing(scene, 1)
    await put_copies(scene, run, 1, status="NONSENSE")
    scene.hosts["host-a"].open.clear()
    lost = await scene.start_host("host-a")
    assert (await scene.show(run)).placement == Placement(host="host-a", epoch=2)
    assert await renew_host(scene.bus, lost, 0, OVER)
    await mark_lost_hosts(scene.bus, LivenessMonitor())
    await scene.settle()
    await scene.start_host("host-b", obeys=True)
    assert (await scene.show(run)).status is WorkflowStatus.READY
