"""The results that agents report, and how the requester of a run learns of them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kingdom.bus import Dispatcher, Event, Transaction
from kingdom.soldiers.redaction import REDACTED
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages.events import WorkflowFailed
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue
from kingdom.workflow.records import DOCUMENTS, REQUESTER_EVENTS
from kingdom.workflow.registry import register_mcp_server
from tests.fakes.agent_environment import UNCONFINED
from tests.integration.running import at_work, eventually
from tests.integration.soldiers.host_scene import ANNA, APP, OUTLINE, HostScene, task, work

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)


def reports(**result: Any) -> dict[str, Any]:
    return {"write": "result.json", "text": json.dumps(result)}


@ONE_BACKEND
async def test_the_report_of_an_agent_is_kept_with_its_work(scene: HostScene) -> None:
    await scene.start_host()
    run = await scene.begin(
        work("plan", task(reports(status="success", summary="a plan", details={"steps": 2}))), work("do", task())
    )
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert [each.result for each in done.works] == [
        {"status": "success", "summary": "a plan", "details": {"steps": 2}},
        None,
    ]


@ONE_BACKEND
async def test_a_scripted_agent_reports_and_remembers_as_one_with_tools_does(scene: HostScene) -> None:
    await scene.start_host()
    learned = {"about": "repo", "text": "Tests need a display."}
    result = {"status": "success", "summary": "looked"}
    run = await scene.begin(work("look", task({"remember": learned}, {"result": result})))
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert done.works[0].result == {**result, "memory_updates": [learned]}


@ONE_BACKEND
async def test_a_scripted_agent_with_an_invalid_report_fails_with_the_reason(scene: HostScene) -> None:
    await scene.start_host()
    run = await scene.begin(work("look", task({"result": {"status": "failed", "summary": "looked"}})))
    assert "error must not be empty" in (await scene.until(run, WorkflowStatus.FAILED)).reason


@ONE_BACKEND
async def test_an_agent_that_reports_a_failure_fails_its_run(scene: HostScene) -> None:
    await scene.start_host()
    run = await scene.begin(work("plan", task(reports(status="failed", error="nothing builds"))))
    failed = await scene.until(run, WorkflowStatus.FAILED)
    assert "nothing builds" in failed.reason


@ONE_BACKEND
async def test_an_agent_that_reports_that_it_needs_a_person_waits_for_one(scene: HostScene) -> None:
    await scene.start_host()
    asking = task(
        {"write": "result.json", "text": json.dumps({"status": "needs_human", "question": "Left or right?"})},
        {"ask": "Left or right?"},
        {"write": "result.json", "text": json.dumps({"status": "success", "summary": "went {reply}"})},
    )
    run = await scene.begin(work("go", asking))
    waiting = await scene.until(run, WorkflowStatus.AWAITING)
    assert waiting.question
    assert waiting.question.text == "Left or right?"
    await lifecycle.resume(scene.bus, run.id, Continue(reply="left"), actor=ANNA)
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    assert (done.works[0].result or {})["status"] == "success"


async def test_the_requester_of_a_run_gets_its_events_in_order(scene: HostScene) -> None:
    delivered: list[str] = []
    dispatcher = Dispatcher()

    async def hear(received: Event[dict[str, Any]], _: Transaction) -> None:
        delivered.append(received.envelope.type)

    for kind in REQUESTER_EVENTS:
        dispatcher.reaction(kind.__name__)(hear)
    await scene.start_host()
    petition = {"petition": "github.comment", "body": {"body": "hello"}}
    run = await _ask_for(scene, work("plan", task(petition)), work("do", task({"fail": "out of luck"})))
    async with at_work(scene.bus, dispatcher, "run.anna"):
        await scene.until(run, WorkflowStatus.FAILED)

        async def all_heard() -> bool:
            return WorkflowFailed.__name__ in delivered

        await eventually(all_heard)
    assert delivered == [
        "WorkStarted",
        "AgentPetitioned",
        "WorkCompleted",
        "WorkStarted",
        "QueryFailed",
        "WorkflowFailed",
    ]


@ONE_BACKEND
async def test_a_run_without_a_requester_notifies_no_one(scene: HostScene) -> None:
    await scene.start_host()
    run = await scene.begin(work("plan", task()))
    await scene.until(run, WorkflowStatus.COMPLETED)
    assert [stats.stream for stats in await scene.operations.stats() if stats.stream.startswith("run.")] == []


async def test_a_run_that_cannot_be_placed_is_not_created(scene: HostScene) -> None:
    with pytest.raises(Exception, match="no soldier host is up"):
        await _ask_for(scene, work("plan", task()))
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("workflow", "wf-asked") is None


async def _ask_for(scene: HostScene, *works: Any, workflow_id: str = "wf-asked", general: str = "") -> Workflow:
    template = WorkflowTemplate(
        id="asked", name="Asked", works=works, git_refs=(GitRef(git_id=APP, base_branch="main"),)
    )
    async with scene.bus.transaction() as transaction:
        return await lifecycle.run(transaction, template, workflow_id, actor=ANNA, requester=ANNA, general=general)


@ONE_BACKEND
@pytest.mark.parametrize("check", ["true", "cat app/.env; echo sesame-of-the-tracker; false"], ids=["result", "check"])
async def test_secrets_of_copied_files_and_mcp_servers_are_in_no_result_answer_or_check_output(
    scene: HostScene, check: str
) -> None:
    environment = scene.copy_env_file("DB_PASSWORD=hunter2hunter2\n")
    tracker = McpServer(id="tracker", name="tracker", transport=McpTransport.STDIO, command=("tracker",))
    await register_mcp_server(scene.bus, tracker, actor=ANNA)
    ref = McpServerRef(mcp_server_id=tracker.id, env={"TRACKER_TOKEN": "sesame-of-the-tracker"})
    leak = task(
        reports(status="success", summary="hunter2hunter2", details="sesame-of-the-tracker"),
        {"answer": "it is sesame-of-the-tracker"},
    )
    await scene.start_host(agent_environment=environment)
    run = await scene.begin(work("leak", leak, verify=(check,), mcp_server_refs=(ref,)))
    passes = check == "true"
    done = await scene.until(run, WorkflowStatus.COMPLETED if passes else WorkflowStatus.FAILED)
    async with scene.bus.transaction() as transaction:
        answer = await transaction.get(DOCUMENTS.name, done.works[0].tasks[0].query.response)
    assert answer
    assert answer.doc["text"] == f"it is {REDACTED}"
    if passes:
        assert done.works[0].result == {"status": "success", "summary": REDACTED, "details": REDACTED}
    else:
        assert done.reason.endswith(f"DB_PASSWORD={REDACTED}\n{REDACTED}")


@ONE_BACKEND
async def test_an_agent_finds_the_assignment_it_works_for_and_the_instructions_of_the_realm(scene: HostScene) -> None:
    guide = scene.folder / "config" / "workspace-claude.md"
    guide.parent.mkdir()
    guide.write_text("# {{name}} at Acme\n\n{{repositories}}\n\nCosts in ${USD}, {{ other }}.\n")
    await scene.start_host(agent_environment=replace(UNCONFINED, guide=guide))
    copies = task({"run": f"cp .kingdom-task.json CLAUDE.md {scene.folder}"})
    run = await _ask_for(scene, work("Fix {{reports}}", copies), workflow_id="wf-task-20260207-001", general="gen-pr")
    await scene.until(run, WorkflowStatus.COMPLETED)
    document = json.loads((scene.folder / ".kingdom-task.json").read_text())
    assert document.keys() == {"task_id", "result_path"}
    assert document["task_id"] == "task-20260207-001"
    assert (scene.folder / "CLAUDE.md").read_text() == (
        "# Fix {{reports}} at Acme\n\n- `app/`\n\nCosts in ${USD}, {{ other }}.\n"
    )


@ONE_BACKEND
async def test_unreadable_instructions_of_the_realm_fail_the_run_with_the_name_of_their_file(
    scene: HostScene,
) -> None:
    guide = scene.folder / "workspace-claude.md"
    guide.write_bytes(b"caf\xe9")
    await scene.start_host(agent_environment=replace(UNCONFINED, guide=guide))
    failed = await scene.until(await scene.begin(work("plan", task())), WorkflowStatus.FAILED)
    assert f"the instructions in {guide} cannot be read" in failed.reason
    assert "remove it to use the built-in instructions" in failed.reason


@ONE_BACKEND
async def test_an_agent_learns_the_outline_of_its_report_with_the_query(scene: HostScene) -> None:
    await scene.start_host()
    run = await scene.begin(work("plan", task({"report": "# Plan"}, report_outline=OUTLINE), task()))
    done = await scene.until(run, WorkflowStatus.COMPLETED)
    texts = [entry["text"] for entry in scene.transcript(done.works[0]) if "goesOn" in entry]
    first, report, second = texts
    assert first.startswith(run.works[0].tasks[0].definition.query.rstrip())
    assert first.endswith("Do not write it yet. It has these sections:\n\n## Report\nWhat was done.\n")
    assert report.startswith("Write a report")
    assert second == run.works[0].tasks[1].definition.query
