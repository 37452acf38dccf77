"""A run goes on with the session of an earlier run where that still exists, and otherwise begins a new one."""

import logging
import signal
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from kingdom.clock import utc_now
from kingdom.log_output import configure_logs
from kingdom.soldiers.agents.port import AgentGone, Launch
from kingdom.soldiers.agents.scripted.client import ScriptedAgent, ScriptedAgentClient
from kingdom.soldiers.redaction import REDACTED
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import set_drained
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.continuation import Continuation
from kingdom.workflow.model.run.work import session_of, soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.operations import FromBase
from kingdom.workflow.records import TREES_KEPT, WORKFLOWS
from tests.fakes.scripts import scripted
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
SAME, NEW = "same", "new"
PASSWORD = "hunter2hunter2"  # noqa: S105 - no real password


def says(name: str, *more: object) -> str:
    """Return a script that writes which prompt the agent got, and how many prompts its session has got."""
    return scripted({"write": f"{APP}/prompt.txt", "text": f"{name} {{prompts}}"}, *more)  # type: ignore[arg-type]  # steps


async def first_run(scene: HostScene) -> Workflow:
    run = await scene.begin(work("write", task({"write": f"{APP}/first.txt"})))
    return await scene.until(run, WorkflowStatus.COMPLETED)


async def continue_run(scene: HostScene, earlier: Workflow, *more: object, name: str = "wf-next") -> Workflow:
    """Start a run that goes on with the session of an earlier one."""
    query = TaskDefinition(query=says(NEW, *more))
    template = WorkflowTemplate(
        id="round",
        name="Round",
        works=(WorkDefinition(name="round", tasks=(query,)),),
        git_refs=(GitRef(git_id=APP, base_branch="main"),),
    )
    until = utc_now() + timedelta(days=14)
    continuation = Continuation(workflow_id=earlier.id, query=says(SAME, *more), kept_until=until)
    async with scene.bus.transaction() as transaction:
        return await lifecycle.run(transaction, template, name, actor=ANNA, continuation=continuation)


def session(run: Workflow) -> str:
    """Return the session of a run's agent."""
    token = run.works[0].agent.session
    assert token
    return session_of(token)


def prompt(scene: HostScene, run: Workflow, host: str = "host-a") -> str:
    """Return which prompt the agent got, and the number of prompts in its session."""
    return (scene.tree(run, host) / "prompt.txt").read_text()


async def assert_new_session(scene: HostScene, first: Workflow, run: Workflow, host: str = "host-a") -> Workflow:
    """Wait until a run has ended that began a new session with the whole prompt."""
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert done.placement
    assert done.placement.host == host
    assert (prompt(scene, done, host), session(done) == session(first)) == (f"{NEW} 1", False)
    assert done.works[0].work_space_id != first.works[0].work_space_id
    assert done.works[0].agent.uses_earlier_session in (False, None)
    return done


@pytest.mark.both_stores
async def test_a_run_goes_on_in_the_session_on_the_host_that_has_it(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    await scene.start_host("host-b", slots=1000)
    second = await scene.until(await continue_run(scene, first), WorkflowStatus.COMPLETED)
    third = await scene.until(await continue_run(scene, second, name="wf-last"), WorkflowStatus.COMPLETED)
    assert [prompt(scene, run) for run in (second, third)] == [f"{SAME} 2", f"{SAME} 3"]
    runs = [await scene.show(run) for run in (first, second, third)]
    assert len({session(run) for run in runs}) == 1
    assert len({soldier_of(run.works[0].agent.session or "") for run in runs}) == 3
    assert len({scene.space(run, run.works[0]) for run in runs}) == 1
    assert [run.earlier_session and run.earlier_session.workflow_id for run in runs] == [None, first.id, second.id]
    assert [run.continued_by for run in runs] == [second.id, third.id, ""]
    assert {run.earlier_session.home_run for run in runs if run.earlier_session} == {first.id}
    assert (scene.space(third, third.works[0]) / APP).resolve() == scene.tree(third)


@pytest.mark.both_stores
async def test_a_run_goes_on_in_the_session_after_a_restart_of_the_host_and_during_it(scene: HostScene) -> None:
    host = await scene.start_host()
    first = await first_run(scene)
    await scene.stop_host(host)
    host = await scene.start_host()
    point = scene.wait_point("round")
    run = await continue_run(scene, first, *point.steps)
    await point.reached()
    await scene.stop_host(host)
    await scene.start_host()
    point.release()
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert (prompt(scene, done), session(done)) == (f"{SAME} 2", session(first))
    assert done.works[0].agent.attempt == 2


@pytest.mark.both_stores
async def test_a_run_begins_a_new_session_if_the_host_is_lost(scene: HostScene) -> None:
    host = await scene.start_host()
    first = await first_run(scene)
    await scene.stop_host(host)
    await scene.until_lost("host-a")
    await scene.start_host("host-b")
    await assert_new_session(scene, first, await continue_run(scene, first), "host-b")


@pytest.mark.both_stores
async def test_a_run_that_was_placed_on_a_dead_host_moves_on(scene: HostScene) -> None:
    host = await scene.start_child("host-a")
    first = await first_run(scene)
    host.signal(signal.SIGKILL)
    await host.ends()
    await scene.start_host("host-b")
    run = await continue_run(scene, first)
    assert run.placement
    assert run.placement.host == "host-a", "its lease has not expired"
    await scene.shorten_lease("host-a")
    await assert_new_session(scene, first, run, "host-b")


@ONE_BACKEND
async def test_a_drained_host_gets_no_run_even_if_it_has_the_session(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    await scene.start_host("host-b")
    async with scene.bus.transaction() as transaction:
        await set_drained(transaction, "host-a", drained=True, actor=ANNA)
    await assert_new_session(scene, first, await continue_run(scene, first), "host-b")


@ONE_BACKEND
async def test_a_run_begins_a_new_session_if_the_earlier_one_was_deleted(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    soldier = soldier_of(first.works[0].agent.session or "")
    scene.folders().transcript(soldier).unlink()
    done = await assert_new_session(scene, first, await continue_run(scene, first))
    later = await scene.until(await continue_run(scene, done, name="wf-last"), WorkflowStatus.COMPLETED)
    assert (prompt(scene, later), session(later)) == (f"{SAME} 2", session(done))


class RevealingClient(ScriptedAgentClient):
    """An agent whose earlier sessions cannot be continued, and whose error contains a secret of the run."""

    async def start(self, launch: Launch) -> ScriptedAgent:
        if launch.earlier_transcript:
            raise AgentGone(f"no such session; DB_PASSWORD={PASSWORD}")
        return await super().start(launch)


@ONE_BACKEND
async def test_the_log_has_no_secret_of_a_run_whose_earlier_session_cannot_be_continued(scene: HostScene) -> None:
    environment = scene.copy_env_file(f"DB_PASSWORD={PASSWORD}\n")
    await scene.start_host(client=RevealingClient(), agent_environment=environment)
    first = await first_run(scene)
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            await assert_new_session(scene, first, await continue_run(scene, first))
    finally:
        configure_logs(json=True, level=logging.ERROR)
    reasons = [each["reason"] for each in logs if "earlier run cannot be continued" in each["event"]]
    assert reasons == [f"no such session; DB_PASSWORD={REDACTED}"]


@ONE_BACKEND
async def test_only_one_run_goes_on_in_a_session_and_only_after_the_end_of_its_run(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("first")
    running = await scene.begin(work("write", task(*point.steps)))
    await point.reached()
    early = await continue_run(scene, running, name="wf-early")
    point.release()
    first = await scene.until(running, WorkflowStatus.COMPLETED)
    await assert_new_session(scene, first, early)
    taken = await scene.until(await continue_run(scene, first, name="wf-taken"), WorkflowStatus.COMPLETED)
    assert session(taken) == session(first)
    await assert_new_session(scene, first, await continue_run(scene, first, name="wf-late"))


@ONE_BACKEND
async def test_a_run_that_is_rolled_back_begins_a_new_session(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    once = scene.folder / "failed-once"
    fails = {"run": f"test -e {once} || {{ touch {once}; exit 7; }}"}
    run = await continue_run(scene, first, fails)
    failed = await scene.until(run, WorkflowStatus.FAILED)
    assert (prompt(scene, failed), session(failed)) == (f"{SAME} 2", session(first))
    await lifecycle.resume(scene.bus, run.id, FromBase(), actor=ANNA)
    await assert_new_session(scene, first, run)


@ONE_BACKEND
async def test_a_run_that_ends_before_its_agent_starts_passes_the_session_on(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    await scene.start_host("host-b")
    async with scene.bus.transaction() as transaction:
        template = WorkflowTemplate(
            id="never",
            name="Never",
            works=(WorkDefinition(name="never", tasks=(TaskDefinition(query="x"),)),),
            git_refs=(GitRef(git_id=APP, base_branch="no-such-branch"),),
        )
        until = utc_now() + timedelta(days=14)
        continuation = Continuation(workflow_id=first.id, query="x", kept_until=until)
        never = await lifecycle.run(transaction, template, "wf-never", actor=ANNA, continuation=continuation)
    await scene.until(never, WorkflowStatus.FAILED)
    await lifecycle.cancel(scene.bus, never.id, actor=ANNA)
    run = await scene.until(await continue_run(scene, never), WorkflowStatus.COMPLETED)
    assert (prompt(scene, run), session(run)) == (f"{SAME} 2", session(first))
    assert run.earlier_session
    assert run.earlier_session.workflow_id == never.id


@ONE_BACKEND
async def test_the_files_of_a_session_stay_while_a_later_run_needs_them(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    point = scene.wait_point("round")
    run = await continue_run(scene, first, *point.steps)
    await point.reached()
    await lifecycle.release(scene.bus, first.id, actor=ANNA)
    await scene.until_true(first, lambda now: now.work_trees[0].status is WorkTreeStatus.RELEASED)
    assert not scene.tree(first).exists()
    assert scene.folders().home(first.id).exists()
    assert scene.space(first, first.works[0]).exists()
    point.release()
    assert session(await scene.until(run, WorkflowStatus.COMPLETED)) == session(first)


@ONE_BACKEND
async def test_the_checkouts_of_a_run_stay_as_long_as_its_files_are_needed(scene: HostScene) -> None:
    await scene.start_host()
    first = await first_run(scene)
    until = utc_now() + timedelta(days=14)
    async with scene.bus.transaction() as transaction:
        await lifecycle.keep_files(transaction, first.id, until, actor=ANNA)
    assert await due_at(scene, first) == until + TREES_KEPT
    async with scene.bus.transaction() as transaction:
        await lifecycle.keep_files(transaction, first.id, first.created_at, actor=ANNA)
    assert first.ended_at
    assert await due_at(scene, first) == first.ended_at + TREES_KEPT
    async with scene.bus.transaction() as transaction:
        await lifecycle.keep_files(transaction, "wf-unknown", until, actor=ANNA)


async def due_at(scene: HostScene, run: Workflow) -> object:
    async with scene.bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, run.id)
    return record and record.due_at
