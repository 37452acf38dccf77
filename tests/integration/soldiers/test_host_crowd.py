"""Many runs at once: on one repository, for few slots."""

import asyncio

import pytest

from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_barriers import ImpatientAgents
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.integration.soldiers.sources import files_of, run

RUNS = 20
ONE_BACKEND = pytest.mark.parametrize("backend", ["postgres"], indirect=True)


@ONE_BACKEND
async def test_many_runs_on_one_repository_all_complete_without_an_error_of_git(scene: HostScene) -> None:
    await scene.start_host(slots=8)
    writing = work("one", task({"write": f"{APP}/one.txt", "text": "by one\n"}))
    runs = [await scene.create_run(writing) for _ in range(RUNS)]
    await asyncio.gather(*(lifecycle.start(scene.bus, each.id, actor=ANNA) for each in runs))
    ended = [await scene.until(each, WorkflowStatus.COMPLETED) for each in runs]

    assert all(files_of(scene.tree(each))["one.txt"] == "by one\n" for each in ended)
    failures = (answers.WorkTreeFailed, answers.CheckpointFailed, answers.VerifyFailed)
    assert [entry for each in ended for entry in await scene.logged(each, *failures)] == []
    refs = run("for-each-ref", "--format=%(refname)", "refs/kingdom/checkpoints", cwd=scene.bare()).splitlines()
    assert len(refs) == RUNS
    assert run("fsck", "--connectivity-only", cwd=scene.bare()) == ""


@pytest.mark.both_stores
@ONE_BACKEND
async def test_a_host_with_one_slot_never_runs_two_agents_and_completes_every_run(scene: HostScene) -> None:
    client = ImpatientAgents(ScriptedAgentClient())
    await scene.start_host(client=client, slots=1)
    runs = [await scene.begin(writes("one", report=False)) for _ in range(3)]
    for each in runs:
        await scene.until(each, WorkflowStatus.COMPLETED)
    assert client.most_at_once == 1
