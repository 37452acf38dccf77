"""A run at the limit of its vendor waits in the store and continues when its time has come."""

from datetime import timedelta

from kingdom.bus import RecordQuery
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.workflow import lifecycle
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import mark_lost_hosts, renew_host
from kingdom.workflow.model.messages import commands, events
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS
from tests.contract.backends import BackendUnderTest
from tests.integration.workflow.scene import ANNA, Scene, opened
from tests.unit.workflow.model.host import throttled
from tests.unit.workflow.model.scene import task, template, work

ONE_TASK = template(work("build", task()))


async def parked(scene: Scene, wait: timedelta) -> str:
    """Return a run that waits for its vendor."""
    run = await scene.create_run(ONE_TASK)
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.until(run, commands.SendQuery)
    await scene.publish_answers(run, throttled(scene.pick(run, commands.SendQuery), utc_now() + wait))
    await scene.succeed(run, commands.StopAgent)
    assert (await scene.show(run)).status is WorkflowStatus.AWAITING
    return run


async def test_a_parked_run_continues_in_its_session_when_its_time_has_come(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await parked(scene, timedelta(seconds=-1))
    assert await lifecycle.resume_parked_runs(scene.bus) == [run]
    await scene.settle()
    started = await scene.until(run, commands.StartAgent)
    assert started.session == "session-1"
    sent = await scene.until(run, commands.SendQuery)
    assert sent.continues
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED
    resumed = await scene.logged(run, events.WorkflowResumed)
    assert [entry.actor for entry in resumed] == ["engine"]


async def test_a_parked_run_is_not_resumed_before_its_time(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await parked(scene, timedelta(hours=1))
    assert await lifecycle.resume_parked_runs(scene.bus) == []
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run)
        due = await transaction.find(RecordQuery(kind=WORKFLOWS.name, due_by=utc_now()))
    assert record is not None
    assert due == []
    assert record.due_at == (await scene.show(run)).parked_until


async def test_a_parked_run_without_any_host_is_tried_again(scene: Scene) -> None:
    host = await scene.start_host("host-a")
    run = await parked(scene, timedelta(seconds=-1))
    assert await renew_host(scene.bus, host, 0, timedelta(0))
    assert [lost.id for lost in await mark_lost_hosts(scene.bus, LivenessMonitor())] == [host.id]
    await scene.settle()
    assert await lifecycle.resume_parked_runs(scene.bus) == []
    await scene.start_host("host-a")
    assert await lifecycle.resume_parked_runs(scene.bus) == [run]


async def test_a_parked_run_after_a_page_of_unreadable_runs_is_resumed_by_the_next_call(scene: Scene) -> None:
    await scene.start_host("host-a")
    run = await parked(scene, timedelta(seconds=-1))
    long_ago = utc_now() - timedelta(hours=1)
    spoilt = Record(kind=WORKFLOWS.name, id="", state=WorkflowStatus.AWAITING, due_at=long_ago, doc={})
    async with scene.bus.transaction() as transaction:
        for number in range(RecordQuery(kind=WORKFLOWS.name).limit):
            await transaction.put(spoilt.replace(id=f"wf-spoilt-{number}"))
    assert await lifecycle.resume_parked_runs(scene.bus) == []
    assert await lifecycle.resume_parked_runs(scene.bus) == [run]


async def test_a_parked_run_is_resumed_by_a_later_process(backend: BackendUnderTest) -> None:
    async with opened(backend) as scene:
        await scene.register_repositories("git-app", "git-lib")
        await scene.start_host("host-a")
        run = await parked(scene, timedelta(seconds=-1))
    async with opened(backend) as scene:
        assert await lifecycle.resume_parked_runs(scene.bus) == [run]
        assert await lifecycle.resume_parked_runs(scene.bus) == []
