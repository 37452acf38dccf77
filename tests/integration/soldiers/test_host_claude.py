"""Claude Code on a host: in the sandbox, through the model proxy, with its tools, against a model stub."""

import json
import shutil
from collections.abc import AsyncIterator

import pytest

from kingdom.soldiers.agents.claude.client import ClaudeAgentClient
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.workflow import lifecycle
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue
from tests.fakes.model.stub import ModelStub
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work
from tests.integration.soldiers.test_host_continuation import NEW, SAME, continue_run, prompt, session

pytestmark = [
    pytest.mark.parametrize("backend", ["files"], indirect=True),
    pytest.mark.usefixtures("patient_with_claude"),
]
KEY = "sk-ant-api03-a-key-that-no-agent-ever-sees"


@pytest.fixture
async def stub() -> AsyncIterator[ModelStub]:
    async with ModelStub() as stub:
        yield stub


@pytest.fixture
def agent_environment(stub: ModelStub) -> AgentEnvironment:
    upstream = Upstream(vendor=Vendor.ANTHROPIC, url=stub.url, key=KEY)
    return AgentEnvironment(profile=SandboxProfile.STRICT, upstreams=(upstream,), offers_tools=True)


async def test_claude_works_in_its_sandbox_and_reports_through_its_tools(
    scene: HostScene, agent_environment: AgentEnvironment, stub: ModelStub
) -> None:
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    done_by = task(
        {"write": f"{APP}/by-claude.txt", "text": "written\n"},
        {"run": f"env > {APP}/environment.txt; cat /proc/*/environ >> {APP}/environment.txt 2>&1 || true"},
        {"result": {"status": "success", "summary": "It is written."}},
        {"cost": 0.5},
        {"answer": "done"},
    )
    run = await scene.begin(work("write", done_by), git_refs=None)
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert (done.works[0].result or {})["summary"] == "It is written."
    assert done.cost_usd == pytest.approx(0.5, rel=0.05)
    tree = scene.folders().checkout(run.id, done.work_trees[0].id)
    assert (tree / "by-claude.txt").read_text() == "written\n"
    assert KEY not in (tree / "environment.txt").read_text(errors="replace")
    assert {served.headers.get("x-api-key") for served in stub.asked} == {KEY}


async def test_claude_asks_a_person_and_continues_with_the_reply(
    scene: HostScene, agent_environment: AgentEnvironment
) -> None:
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    asking = task(
        {"ask": "Left or right?", "choices": ["left", "right"]},
        {"result": {"status": "success", "summary": "went"}},
        {"answer": "so {reply}"},
    )
    run = await scene.begin(work("go", asking))
    waiting = await scene.until(run, WorkflowStatus.AWAITING)
    assert waiting.question
    assert waiting.question.choices == ("left", "right")
    await lifecycle.resume(scene.bus, run.id, Continue(reply="left"), actor=ANNA)
    await scene.until(run, WorkflowStatus.COMPLETED)


async def test_claude_that_ends_without_a_result_is_asked_once_for_one_and_then_fails(
    scene: HostScene, agent_environment: AgentEnvironment
) -> None:
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    run = await scene.begin(work("forget", task({"answer": "all done"})))
    failed = await scene.until(run, WorkflowStatus.FAILED)
    assert "without a result" in failed.reason


async def test_a_report_that_needs_a_person_waits_for_one_and_nothing_is_done_twice(
    scene: HostScene, agent_environment: AgentEnvironment
) -> None:
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    asking = task(
        {"run": f"echo once >> {APP}/count.txt"},
        {"result": {"status": "needs_human", "summary": "stuck", "question": "Left or right?"}},
        {"answer": "please tell"},
    )
    run = await scene.begin(work("go", asking))
    waiting = await scene.until(run, WorkflowStatus.AWAITING)
    assert waiting.question
    assert waiting.question.text == "Left or right?"
    await lifecycle.resume(scene.bus, run.id, Continue(reply="left"), actor=ANNA)
    # The script of the model has no further step, so the run fails after the reply.
    ended = await scene.until(run, WorkflowStatus.FAILED)
    tree = scene.folders().checkout(run.id, ended.work_trees[0].id)
    assert (tree / "count.txt").read_text() == "once\n"


async def test_claude_goes_on_in_the_session_of_an_earlier_run(
    scene: HostScene, agent_environment: AgentEnvironment, stub: ModelStub
) -> None:
    host = await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    result = {"result": {"status": "success", "summary": "It is written."}}
    first = await scene.begin(work("write", task({"write": f"{APP}/first.txt", "text": "1"}, result, {"cost": 0.5})))
    first = await scene.until(first, WorkflowStatus.COMPLETED)
    await scene.stop_host(host)
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    asked_before = len(stub.asked)
    run = await continue_run(scene, first, result, {"cost": 0.25})
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert (session(done), prompt(scene, done)) == (session(first), f"{SAME} {{prompts}}")
    assert done.cost_usd == pytest.approx(0.25, rel=0.05)
    later = json.dumps([served.body["messages"] for served in stub.asked[asked_before:]])
    assert "first.txt" in later, "the model sees what happened in the earlier run"
    assert f"{NEW} {{prompts}}" not in later
    assert str(scene.space(first, first.works[0])) in later


async def test_claude_begins_a_new_session_if_its_own_file_of_the_earlier_one_is_gone(
    scene: HostScene, agent_environment: AgentEnvironment
) -> None:
    await scene.start_host(client=ClaudeAgentClient(), agent_environment=agent_environment)
    result = {"result": {"status": "success", "summary": "It is written."}}
    first = await scene.begin(work("write", task({"write": f"{APP}/first.txt", "text": "1"}, result)))
    first = await scene.until(first, WorkflowStatus.COMPLETED)
    shutil.rmtree(scene.folders().home(first.id))
    done = await scene.until(await continue_run(scene, first, result), WorkflowStatus.COMPLETED)
    assert (session(done) == session(first), prompt(scene, done)) == (False, f"{NEW} {{prompts}}")
