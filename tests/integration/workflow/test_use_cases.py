"""The operations of people on runs: each is one transaction, or is refused with the allowed operations."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from kingdom.bus import Bus
from kingdom.clock import utc_now
from kingdom.errors import IllegalTransition, NotFound, Transient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import commands, events
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus, allowed_operations
from kingdom.workflow.model.steps.modify import Modification
from kingdom.workflow.model.steps.operations import Auto, Continue, FromBase, FromCheckpoint
from kingdom.workflow.records import WORKFLOWS, run_transaction, save_resource
from kingdom.workflow.registry import delete_git, show_git
from tests.integration.workflow.scene import ANNA, Scene
from tests.unit.workflow.model.scene import APP, LIB, task, template, work

SMALL = template(work("only", task()), git_refs=(APP,))
GHOST = GitRef(git_id="git-ghost", base_branch="main")
UseCase = Callable[[Bus, str], Awaitable[Workflow]]
USE_CASES: dict[str, UseCase] = {
    "prepare": lambda bus, run: lifecycle.prepare(bus, run, actor=ANNA),
    "start": lambda bus, run: lifecycle.start(bus, run, actor=ANNA),
    "pause": lambda bus, run: lifecycle.pause(bus, run, actor=ANNA),
    "resume": lambda bus, run: lifecycle.resume(bus, run, Auto(), actor=ANNA),
    "cancel": lambda bus, run: lifecycle.cancel(bus, run, actor=ANNA),
    "modify": lambda bus, run: lifecycle.modify(bus, run, Modification(), actor=ANNA),
    "release": lambda bus, run: lifecycle.release(bus, run, actor=ANNA),
    "delete": lambda bus, run: lifecycle.delete(bus, run, actor=ANNA),
}


async def running(scene: Scene) -> str:
    """Return a run whose first query is with its agent."""
    await scene.start_host()
    run = await scene.create_run()
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.until(run, commands.SendQuery)
    return run


async def completed(scene: Scene) -> str:
    await scene.start_host()
    run = await scene.create_run(SMALL)
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    assert (await scene.finish(run)).status is WorkflowStatus.COMPLETED
    return run


async def test_a_created_run_is_stored_and_its_event_names_its_creator(scene: Scene) -> None:
    run = await scene.create_run(SMALL)
    workflow = await scene.show(run)
    assert (workflow.status, workflow.placement, workflow.name) == (WorkflowStatus.CREATED, None, "Fix the bug")
    [entry] = await scene.logged(run)
    assert (entry.type, entry.actor, entry.data) == ("WorkflowCreated", ANNA, {"workflowId": run})


async def test_a_run_may_have_a_name_of_its_own(scene: Scene) -> None:
    run = await scene.create_run(SMALL)
    assert (await scene.show(run)).name == "Fix the bug"
    named = await lifecycle.create(scene.bus, "tpl-1", actor=ANNA, name="Fix #7")
    assert (await scene.show(named.id)).name == "Fix #7"


async def test_preparing_creates_the_checkouts_and_stops_at_ready(scene: Scene) -> None:
    await scene.start_host()
    run = await scene.create_run()
    prepared = await lifecycle.prepare(scene.bus, run, actor=ANNA)
    assert prepared.status is WorkflowStatus.PREPARING
    await scene.settle()
    workflow = await scene.finish(run)
    assert workflow.status is WorkflowStatus.READY
    assert {tree.status for tree in workflow.work_trees} == {WorkTreeStatus.READY}
    started = await lifecycle.start(scene.bus, run, actor=ANNA)
    assert started.status is WorkflowStatus.RUNNING


async def test_starting_prepares_runs_and_completes(scene: Scene) -> None:
    await scene.start_host(obeys=True)
    run = await scene.create_run()
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    workflow = await scene.show(run)
    assert workflow.status is WorkflowStatus.COMPLETED
    assert len(workflow.checkpoints) == 3
    assert workflow.started_at
    assert workflow.ended_at


async def test_pausing_waits_for_the_host_and_resuming_continues_in_the_session(scene: Scene) -> None:
    run = await running(scene)
    paused = await lifecycle.pause(scene.bus, run, actor=ANNA)
    assert (paused.status, paused.stop_request is not None) == (WorkflowStatus.RUNNING, True)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    assert (await scene.show(run)).status is WorkflowStatus.PAUSED
    scene.pick(run, commands.SendQuery)
    await lifecycle.resume(scene.bus, run, Continue(), actor=ANNA)
    await scene.settle()
    assert scene.pick(run, commands.StartAgent).session == "session-1"


async def test_resuming_from_base_and_from_a_checkpoint_rolls_back(scene: Scene) -> None:
    run = await running(scene)
    await scene.until(run, commands.SendQuery, 1)
    for how, target in ((FromCheckpoint(f"{run}-w1-c1"), f"{run}-w1-c1"), (FromBase(), None)):
        await lifecycle.pause(scene.bus, run, actor=ANNA)
        await scene.settle()
        scene.pick(run, commands.SendQuery)
        await scene.succeed(run, commands.StopAgent)
        await lifecycle.resume(scene.bus, run, how, actor=ANNA)
        await scene.settle()
        assert (await scene.until(run, commands.RollBack)).checkpoint_id == target
        await scene.until(run, commands.SendQuery)


async def test_an_unknown_checkpoint_is_refused_with_those_that_are_valid(scene: Scene) -> None:
    run = await running(scene)
    await scene.until(run, commands.SendQuery, 1)
    await lifecycle.pause(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    with pytest.raises(NotFound, match=f"no valid checkpoint 'nope'; valid are: {run}-w1-c1"):
        await lifecycle.resume(scene.bus, run, FromCheckpoint("nope"), actor=ANNA)


async def test_cancelling_interrupts_and_ends_once_the_host_confirms(scene: Scene) -> None:
    run = await running(scene)
    cancelled = await lifecycle.cancel(scene.bus, run, actor=ANNA)
    assert cancelled.status is WorkflowStatus.RUNNING
    await scene.settle()
    await scene.succeed(run, commands.InterruptAgent)
    workflow = await scene.show(run)
    assert (workflow.status, workflow.uses_resources) == (WorkflowStatus.CANCELLED, False)


async def test_modifying_changes_works_that_have_not_started(scene: Scene) -> None:
    run = await running(scene)
    await scene.register_server("mcp-tools")
    refs = (McpServerRef(mcp_server_id="mcp-tools"),)
    await lifecycle.modify(scene.bus, run, Modification(mcp_server_refs=refs), actor=ANNA)
    assert (await scene.show(run)).mcp_server_refs == refs
    start = await scene.until(run, commands.StartAgent, 1)
    assert start.mcp_server_refs == refs


async def test_releasing_an_ended_run_removes_its_checkouts(scene: Scene) -> None:
    run = await completed(scene)
    await lifecycle.release(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.finish(run)
    assert {tree.status for tree in (await scene.show(run)).work_trees} == {WorkTreeStatus.RELEASED}


async def test_deleting_a_run_marks_it_as_deleted_and_releases_its_checkouts(scene: Scene) -> None:
    run = await completed(scene)
    await lifecycle.delete(scene.bus, run, actor=ANNA)
    await scene.settle()
    workflow = await scene.finish(run)
    assert workflow.deleted_at
    assert {tree.status for tree in workflow.work_trees} == {WorkTreeStatus.RELEASED}
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run)
    assert record
    assert record.state == "DELETED"
    with pytest.raises(IllegalTransition, match="DELETED"):
        await lifecycle.delete(scene.bus, run, actor=ANNA)


async def test_a_missing_run_or_template_is_reported_as_not_found(scene: Scene) -> None:
    for use_case in USE_CASES.values():
        with pytest.raises(NotFound, match="there is no workflow 'wf-none': see `kingdom workflow list`"):
            await use_case(scene.bus, "wf-none")
    with pytest.raises(NotFound, match="there is no workflow 'wf-none'"):
        await lifecycle.show(scene.bus, "wf-none")
    with pytest.raises(NotFound, match="there is no template 'tpl-none'"):
        await lifecycle.create(scene.bus, "tpl-none", actor=ANNA)


async def refused(scene: Scene, run: str, *names: str) -> None:
    """Check that these use cases are refused with the allowed operations, and that a refusal changes nothing."""
    before, logged = await scene.show(run), len(await scene.log())
    for name in names:
        with pytest.raises(IllegalTransition, match=f"workflow {run} is {before.status}: cannot {name} it") as error:
            await USE_CASES[name](scene.bus, run)
        assert error.value.allowed == tuple(sorted(allowed_operations(before.status)))
    assert (await scene.show(run), len(await scene.log())) == (before, logged)


async def test_an_operation_that_a_state_does_not_allow_is_refused_with_the_allowed_ones(scene: Scene) -> None:
    await scene.start_host()
    created = await scene.create_run(SMALL)
    await refused(scene, created, "pause", "resume", "release")
    run = await running(scene)
    await refused(scene, run, "prepare", "start", "resume", "release", "delete")
    await lifecycle.pause(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.StopAgent)
    await refused(scene, run, "prepare", "start", "pause", "release", "delete")
    ended = await completed(scene)
    await refused(scene, ended, "prepare", "start", "pause", "resume", "cancel", "modify")


@pytest.mark.parametrize("use_case", [lifecycle.prepare, lifecycle.start])
async def test_without_a_host_a_run_cannot_be_prepared_or_started_and_does_not_change(
    scene: Scene, use_case: UseCase
) -> None:
    run = await scene.create_run(SMALL)
    before = await scene.show(run)
    with pytest.raises(Transient, match="no soldier host is up: start one"):
        await use_case(scene.bus, run, actor=ANNA)  # type: ignore[call-arg]
    assert await scene.show(run) == before
    assert [entry.type for entry in await scene.logged(run)] == ["WorkflowCreated"]


async def test_a_run_of_an_unknown_repository_is_not_found(scene: Scene) -> None:
    await scene.start_host()
    unregistered = template(work("only", task()), id="tpl-unregistered", git_refs=(GHOST,))
    await run_transaction(scene.bus, lambda transaction: save_resource(transaction, unregistered, None))
    with pytest.raises(NotFound, match="there is no git 'git-ghost': register it with `kingdom git create`"):
        await lifecycle.create(scene.bus, "tpl-unregistered", actor=ANNA)


async def test_a_run_cannot_be_modified_to_use_an_unknown_repository(scene: Scene) -> None:
    run = await running(scene)
    before = await scene.show(run)
    with pytest.raises(NotFound, match="there is no git 'git-ghost'"):
        await lifecycle.modify(scene.bus, run, Modification(git_refs=(APP, GHOST)), actor=ANNA)
    assert await scene.show(run) == before


async def test_a_run_whose_repository_was_deleted_cannot_start(scene: Scene) -> None:
    await scene.start_host()
    run = await scene.create_run(template(work("only", task()), git_refs=(LIB,)))
    await delete_git(scene.bus, "git-lib", actor=ANNA)
    with pytest.raises(IllegalTransition, match=f"git git-lib is DELETED: workflow {run} cannot use it"):
        await lifecycle.start(scene.bus, run, actor=ANNA)
    assert (await scene.show(run)).status is WorkflowStatus.CREATED


async def test_a_repository_is_kept_while_a_run_uses_it_and_free_after_its_end(scene: Scene) -> None:
    run = await running(scene)
    with pytest.raises(IllegalTransition, match=f"git git-app is IN USE: .*{run}"):
        await delete_git(scene.bus, "git-app", actor=ANNA)
    await lifecycle.cancel(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.succeed(run, commands.InterruptAgent)
    assert (await delete_git(scene.bus, "git-app", actor=ANNA)).deleted


@pytest.mark.both_stores
async def test_a_start_and_a_concurrent_deletion_of_its_repository_leave_a_consistent_state(scene: Scene) -> None:
    await scene.start_host()
    for number in range(10):
        ref = GitRef(git_id=f"git-{number}", base_branch="main")
        await scene.register_repositories(ref.git_id)
        run = await scene.create_run(template(work("only", task()), git_refs=(ref,)))
        doings = (lifecycle.start(scene.bus, run, actor=ANNA), delete_git(scene.bus, ref.git_id, actor=ANNA))
        started, deleted = await asyncio.gather(*doings, return_exceptions=True)
        git, users = await show_git(scene.bus, ref.git_id)
        if isinstance(started, IllegalTransition):
            assert isinstance(deleted, Git)
            assert (git.deleted, users.workflows) == (True, ())
        elif isinstance(deleted, IllegalTransition):
            assert (git.deleted, users.workflows) == (False, (run,))
        else:
            # The start was stored after the last check of the deletion. The run fails when its host uses the git.
            assert isinstance(started, Workflow)
            assert isinstance(deleted, Git)
            assert git.deleted


@pytest.mark.both_stores
async def test_twenty_runs_that_start_at_once_all_complete(scene: Scene) -> None:
    await scene.start_host("host-a", slots=10, obeys=True)
    await scene.start_host("host-b", slots=10, obeys=True)
    runs = [await scene.create_run(SMALL) for _ in range(20)]
    await asyncio.gather(*(lifecycle.start(scene.bus, run, actor=ANNA) for run in runs))
    await scene.settle()
    shown = [await scene.show(run) for run in runs]
    assert {workflow.status for workflow in shown} == {WorkflowStatus.COMPLETED}
    assert {workflow.placement.host for workflow in shown if workflow.placement} == {"host-a", "host-b"}


@pytest.mark.both_stores
async def test_five_concurrent_starts_of_a_run_start_it_once(scene: Scene) -> None:
    await scene.start_host()
    run = await scene.create_run(SMALL)
    starts = (lifecycle.start(scene.bus, run, actor=f"person-{number}") for number in range(5))
    ended = await asyncio.gather(*starts, return_exceptions=True)
    assert [type(end) for end in ended].count(Workflow) == 1
    assert [type(end) for end in ended].count(IllegalTransition) == 4
    await scene.settle()
    scene.pick(run, commands.PrepareResources)


@pytest.mark.both_stores
async def test_five_concurrent_cancels_of_a_run_end_it_once(scene: Scene) -> None:
    run = await running(scene)
    cancels = (lifecycle.cancel(scene.bus, run, actor=f"person-{number}") for number in range(5))
    answered = await asyncio.gather(*cancels)
    assert {workflow.status for workflow in answered} == {WorkflowStatus.RUNNING}
    await scene.settle()
    await scene.succeed(run, commands.InterruptAgent)
    assert (await scene.show(run)).status is WorkflowStatus.CANCELLED
    for once in (events.WorkflowStopRequested, events.WorkflowCancelled):
        assert len(await scene.logged(run, once)) == 1


async def test_five_concurrent_cancels_of_an_unstarted_run_end_it_once(scene: Scene) -> None:
    run = await scene.create_run(SMALL)
    cancels = (lifecycle.cancel(scene.bus, run, actor=f"person-{number}") for number in range(5))
    ended = await asyncio.gather(*cancels, return_exceptions=True)
    assert [type(end) for end in ended].count(IllegalTransition) == 4
    assert len(await scene.logged(run, events.WorkflowCancelled)) == 1


async def fall_due(scene: Scene, run: str) -> timedelta:
    """Make the release of a run's checkouts due now, and return the remaining time until it was due."""
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run)
        assert record
        assert record.due_at
        await transaction.put(record.replace(due_at=utc_now() - timedelta(seconds=1)))
    return record.due_at - utc_now()


@pytest.mark.parametrize("use_case", [lifecycle.release, lifecycle.delete])
async def test_a_checkout_that_could_not_be_removed_is_tried_again_a_day_later(scene: Scene, use_case: Any) -> None:
    run = await completed(scene)
    await use_case(scene.bus, run, actor=ANNA)
    await scene.settle()
    await scene.fail(run, commands.ReleaseWorkTree)
    assert (await scene.show(run)).work_trees[0].error == "broken"
    assert await lifecycle.release_old_checkouts(scene.bus) == []
    assert timedelta(hours=23) < await fall_due(scene, run) <= timedelta(hours=24)
    assert await lifecycle.release_old_checkouts(scene.bus) == [run]
    await scene.settle()
    assert (await scene.finish(run)).work_trees[0].status is WorkTreeStatus.RELEASED
    assert await lifecycle.release_old_checkouts(scene.bus) == []


async def test_a_run_whose_checkouts_cannot_be_released_does_not_prevent_other_releases(scene: Scene) -> None:
    broken, run = await completed(scene), await completed(scene)
    for due in (broken, run):
        await fall_due(scene, due)
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, broken)
        assert record
        await transaction.put(record.replace(doc={**record.doc, "works": "nonsense"}))
    assert await lifecycle.release_old_checkouts(scene.bus) == [run]


async def test_no_secret_of_a_run_is_logged_or_sent(scene: Scene) -> None:
    await scene.register_server("mcp-tools")
    run = await running(scene)
    refs = (McpServerRef(mcp_server_id="mcp-tools", env={"TOKEN": "s3cr3t"}),)
    await lifecycle.modify(scene.bus, run, Modification(mcp_server_refs=refs), actor=ANNA)
    await scene.finish(run)
    taken = [command for host in scene.hosts.values() for command in host.taken]
    assert [ref.mcp_server_id for each in taken for ref in getattr(each, "mcp_server_refs", ())]
    assert "s3cr3t" not in repr(taken) + repr(await scene.log())


async def test_checkouts_are_released_a_while_after_the_end_and_only_then(scene: Scene) -> None:
    run = await completed(scene)
    assert await lifecycle.release_old_checkouts(scene.bus) == []
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run)
        assert record
        assert record.due_at
        assert timedelta(hours=23) < record.due_at - utc_now() <= timedelta(hours=24)
        await transaction.put(record.replace(due_at=utc_now() - timedelta(seconds=1)))
    assert await lifecycle.release_old_checkouts(scene.bus) == [run]
    assert await lifecycle.release_old_checkouts(scene.bus) == []
    await scene.settle()
    assert (await scene.finish(run)).work_trees[0].status is WorkTreeStatus.RELEASED
    [entry] = await scene.logged(run, events.WorkTreePendingRelease)
    assert entry.actor == "engine"
