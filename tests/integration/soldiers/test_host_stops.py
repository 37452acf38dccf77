"""Pausing and cancelling while an agent is running."""

from datetime import timedelta
from typing import Any

import pytest

from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host import running_agents, running_commands
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.status import QueryStatus, WorkflowStatus, WorkStatus
from kingdom.workflow.model.steps.modify import Modification, WorkChange
from kingdom.workflow.model.steps.operations import Continue
from tests.integration.running import eventually
from tests.integration.soldiers.host_barriers import ImpatientAgents
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.integration.soldiers.intercepted_agents import InterceptedAgents
from tests.integration.soldiers.processes import until_runs
from tests.integration.soldiers.sources import files_of
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)


class OneFailure:
    """Raises a connection error at its first call."""

    def __init__(self) -> None:
        self.happened = False

    async def __call__(self) -> None:
        if not self.happened:
            self.happened = True
            raise ConnectionResetError("the connection to the agent is gone")


async def test_a_paused_run_continues_in_its_session_with_the_changed_definition(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_commands, "GRACE", timedelta(seconds=PATIENCE_SECONDS))
    await scene.start_host()
    point = scene.wait_point("one")
    first = work("one", task(*point.steps), task({"write": f"{APP}/one.txt", "text": "by one\n"}))
    workflow = await scene.begin(first, writes("two"))
    await point.reached()

    await lifecycle.pause(scene.bus, workflow.id, actor=ANNA)
    point.release()
    paused = await scene.until(workflow, WorkflowStatus.PAUSED)
    assert scene.processes() == []
    assert [each.query.status for each in paused.works[0].tasks] == [QueryStatus.RESPONDED, QueryStatus.PENDING]
    changes = zip(paused.works, (first, writes("changed")), strict=True)
    modification = Modification(works=tuple(WorkChange(id=work.id, definition=wanted) for work, wanted in changes))
    await lifecycle.modify(scene.bus, workflow.id, modification, actor=ANNA)
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)

    assert set(files_of(scene.tree(completed))) == {"README.md", "one.txt", "changed.txt"}
    assert completed.works[0].agent.session == paused.works[0].agent.session
    sent = [entry.data["taskId"] for entry in await scene.logged(workflow, events.QuerySent)]
    assert sent == [task.id for work in completed.works for task in work.tasks]


async def test_an_agent_that_does_not_finish_its_turn_is_stopped_and_resumes_after_its_last_step(
    scene: HostScene,
) -> None:
    await scene.start_host(client=ImpatientAgents(ScriptedAgentClient()))
    point = scene.wait_point("one")
    path = f"{APP}/one.txt"
    steps = ({"append": path, "text": "before\n"}, *point.steps, {"append": path, "text": "after\n"})
    workflow = await scene.begin(work("one", task(*steps)))
    await point.reached()

    await lifecycle.pause(scene.bus, workflow.id, actor=ANNA)
    paused = await scene.until(workflow, WorkflowStatus.PAUSED)
    assert scene.processes() == []
    assert paused.works[0].tasks[0].query.status is QueryStatus.UNKNOWN
    await lifecycle.resume(scene.bus, workflow.id, Continue(), actor=ANNA)
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)

    assert (scene.tree(completed) / "one.txt").read_text() == "before\nafter\n"
    (looked_up,) = await scene.logged(workflow, answers.QueryReconciled)
    assert looked_up.data["finding"] == TranscriptFinding.UNFINISHED


@pytest.mark.parametrize(
    ("doing", "runs"),
    [({"run": "setsid sleep 901 & exec sleep 902"}, ("sleep 901", "sleep 902")), ({"hang": "deaf"}, ())],
    ids=["running tools", "ignoring input and signals"],
)
async def test_the_agents_of_a_cancelled_run_get_less_than_a_second_to_stop_and_leave_no_process(
    scene: HostScene, doing: dict[str, Any], runs: tuple[str, ...]
) -> None:
    intercepted = InterceptedAgents(ScriptedAgentClient())
    await scene.start_host(client=intercepted)
    here = scene.folder / "here"
    workflow = await scene.begin(work("one", task({"write": str(here)}, doing)), writes("two"))
    for words in runs:
        await until_runs(scene.mark, words)

    async def is_there() -> bool:
        return here.exists()

    async def none_left() -> bool:
        return not scene.processes()

    await eventually(is_there)
    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    await eventually(none_left)
    cancelled = await scene.until(workflow, WorkflowStatus.CANCELLED)
    assert [work.status for work in cancelled.works] == [WorkStatus.CANCELLED] * 2
    assert intercepted.graces
    assert max(intercepted.graces) < timedelta(seconds=1)


@pytest.mark.parametrize("fails", ["interrupt", "stop"])
async def test_an_agent_is_stopped_although_its_interruption_or_its_stop_fails_once(
    scene: HostScene, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_agents, "_STOP_PAUSE_SECONDS", 0.01)
    failure = OneFailure()
    await scene.start_host(slots=1, client=InterceptedAgents(ScriptedAgentClient(), **{f"before_{fails}": failure}))
    point = scene.wait_point("one")
    workflow = await scene.begin(work("one", task(*point.steps)))
    await point.reached()

    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    await scene.until(workflow, WorkflowStatus.CANCELLED)
    assert failure.happened
    assert scene.processes() == []
    await scene.until(await scene.begin(writes("two")), WorkflowStatus.COMPLETED)
