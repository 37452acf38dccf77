"""From an event to the end of its assignment, as a General sees it."""

from pathlib import Path

import pytest

from kingdom.court.documents import AssignmentStatus, EventStatus, MessageType
from kingdom.court.package import PetitionRule
from kingdom.court.petitions.decision import PetitionState
from kingdom.court.petitions.settlement import settle_petition
from kingdom.court.streams import retry_due
from kingdom.workflow import lifecycle
from kingdom.workflow.model.steps.operations import Continue
from kingdom.workflow.registry import delete_git
from tests.contract.backends import BackendUnderTest
from tests.integration.court.general.scene import CourtScene, opened, reports, work
from tests.integration.running import eventually

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
SUCCESS = reports(task_id="invented-by-the-model", status="success", summary="all is well", details={"files": 2})


@pytest.mark.both_stores
async def test_an_event_becomes_a_completed_assignment_without_a_person(court: CourtScene) -> None:
    court.has(work("look", SUCCESS, {"cost": 0.25}))
    event = await court.until_event(await court.send_event(), EventStatus.COMPLETED)
    (task,) = await court.assignments()
    assert (task.status, task.reason, task.workflow_id) == (
        AssignmentStatus.COMPLETED,
        "all is well",
        f"wf-{task.id}",
    )
    assert [route.assignment_id for route in event.routes] == [task.id]
    result = await court.result(task.id)
    assert (result["task_id"], result["status"], result["details"]) == (task.id, "success", {"files": 2})
    assert result["metrics"]["cost_usd"] == 0.25
    raw = await court.result(f"{task.id}-raw")
    assert (raw["task_id"], raw["summary"]) == (task.id, "all is well")
    await court.until_nothing_is_held()


@ONE_BACKEND
@pytest.mark.parametrize(
    ("payload", "name"), [({"title": "Prices  lack\na currency"}, "Prices lack a currency"), ({}, "")]
)
async def test_a_run_has_the_title_of_its_event_or_its_type(
    court: CourtScene, payload: dict[str, str], name: str
) -> None:
    court.has(work("look", SUCCESS))
    event = await court.until_event(await court.send_event(**payload), EventStatus.COMPLETED)
    (task,) = await court.assignments()
    run = await court.record("workflow", task.workflow_id)
    assert run
    assert run.doc["name"] == (name or event.type)


async def test_the_life_of_an_assignment_is_logged_in_order(court: CourtScene) -> None:
    court.has(work("look", SUCCESS))
    event_id = await court.send_event()
    await court.until_event(event_id, EventStatus.COMPLETED)
    types = (
        *("event.detected", "event.dispatched", "task.created", "task.started"),
        *("soldier.spawned", "soldier.completed", "task.completed"),
    )
    logged = await court.logged(*types)
    assert [kind for kind, _ in logged] == [
        *("event.detected", "task.created", "event.dispatched", "task.started"),
        *("soldier.spawned", "soldier.completed", "task.completed"),
    ]
    (task,) = await court.assignments()
    entries = dict(logged)
    assert entries["soldier.spawned"].keys() == {"task_id", "soldier_id"}
    assert entries["soldier.completed"]["status"] == "success"
    assert entries["task.completed"].keys() == {"task_id", "status", "duration_seconds"}
    assert (entries["task.completed"]["task_id"], entries["task.completed"]["status"]) == (task.id, "success")


@ONE_BACKEND
async def test_files_next_to_the_records_show_prompts_and_sessions(court: CourtScene) -> None:
    court.has(work("look", SUCCESS), work("look again", SUCCESS))
    await court.until_event(await court.send_event(), EventStatus.COMPLETED)
    (task,) = await court.assignments()
    prompt = (court.realm / "state" / "prompts" / f"{task.id}.md").read_text()
    assert ("# look\n" in prompt, "# look again\n" in prompt) == (True, True)
    soldiers = (court.realm / "state" / "results" / f"{task.id}-soldier-id").read_text().split()
    sessions = (court.realm / "state" / "results" / f"{task.id}-session-id").read_text().split()
    assert (len(soldiers), len(sessions)) == (2, 2)
    assert all(soldier.startswith("soldier-") for soldier in soldiers)


async def test_the_soldier_host_stores_each_report_of_an_agent_before_the_run_ends(court: CourtScene) -> None:
    first = reports(status="success", summary="first", task_id="task-of-somebody-else")
    court.has(work("look", first, {"answer": "Done."}, pause_after=True), work("look again", SUCCESS))
    event_id = await court.send_event()
    task = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    raw = await court.result(f"{task.id}-raw")
    assert (raw["task_id"], raw["summary"]) == (task.id, "first")
    assert await court.record("result", task.id) is None
    await court.answer(task.id, "approve")
    await court.until_event(event_id, EventStatus.COMPLETED)
    assert (await court.result(f"{task.id}-raw"))["summary"] == (await court.result(task.id))["summary"] != "first"


async def test_a_question_waits_for_a_person_and_the_run_continues_with_the_answer(court: CourtScene) -> None:
    court.has(work("look", {"ask": "Left or right?", "choices": ["left", "right"]}, SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)

    async def slots_are_free() -> bool:
        return not await court.held()

    await eventually(slots_are_free)
    assert await court.messages(MessageType.HUMAN_INPUT_REQUEST) == ["Left or right?"]
    await court.answer(waiting.id, "left")
    await court.until_event(event_id, EventStatus.COMPLETED)
    first, second = await court.assignments()
    assert (first.status, second.status) == (AssignmentStatus.COMPLETED, AssignmentStatus.COMPLETED)
    assert (second.type, second.root) == ("resume", first.id)
    assert await court.logged("task.resumed") == [
        ("task.resumed", {"task_id": second.id, "original_task_id": first.id})
    ]
    assert [data["question"] for _, data in await court.logged("task.needs_human")] == ["Left or right?"]
    await court.until_nothing_is_held()


@ONE_BACKEND
async def test_an_approved_gate_lets_the_run_continue(court: CourtScene) -> None:
    court.has(work("plan", SUCCESS, pause_after=True), work("do", SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    ask = await court.record("ask", waiting.id)
    assert ask
    assert ask.doc["choices"] == ["approve", "reject"]
    await court.answer(waiting.id, "approve")
    await court.until_event(event_id, EventStatus.COMPLETED)


@ONE_BACKEND
async def test_a_gate_that_is_rejected_ends_the_assignment(court: CourtScene) -> None:
    court.has(work("plan", SUCCESS, pause_after=True), work("do", SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    await court.answer(waiting.id, "Reject")
    event = await court.until_event(event_id, EventStatus.FAILED)
    assert event.reason == "killed: a person rejected it"
    await court.until_nothing_is_held()


@ONE_BACKEND
async def test_a_gate_accepts_only_one_of_its_choices(court: CourtScene) -> None:
    court.has(work("plan", SUCCESS, pause_after=True), work("do", SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    for words in ("no", "please don't", "rejecting this would be wrong", "approved?"):
        ignored = await court.until_event(await court.answer(waiting.id, words), EventStatus.COMPLETED)
        assert (ignored.outcome, "approve, reject" in ignored.reason) == ("ignored", True)
    assert (await court.assignments())[-1].status is AssignmentStatus.NEEDS_HUMAN
    await court.answer(waiting.id, " approve ")
    await court.until_event(event_id, EventStatus.COMPLETED)


@ONE_BACKEND
async def test_an_agent_that_finds_nothing_to_do_ends_the_run_as_skipped(court: CourtScene) -> None:
    court.has(work("look", reports(status="skipped", summary="-", reason="a draft")), work("do", SUCCESS))
    await court.until_event(await court.send_event(), EventStatus.COMPLETED)
    (task,) = await court.assignments()
    assert (task.status, task.reason) == (AssignmentStatus.SKIPPED, "a draft")
    assert (await court.result(task.id))["reason"] == "a draft"


async def test_a_failing_run_is_tried_again_as_often_as_the_policy_says_and_then_fails(court: CourtScene) -> None:
    court.has(work("look", {"fail": "out of luck"}), retries=2)
    event = await court.until_event(await court.send_event(), EventStatus.FAILED)
    (task,) = await court.assignments()
    assert "out of luck" in task.reason
    assert "out of luck" in event.reason
    assert (await court.result(task.id))["status"] == "failed"
    ((_, failed),) = await court.logged("task.failed")
    assert (failed["task_id"], failed["retry_count"]) == (task.id, 2)
    assert len(await court.logged("soldier.spawned")) == 3
    await court.until_nothing_is_held()

    async def is_given_up() -> bool:
        run = await court.record("workflow", task.workflow_id)
        return run is not None and run.state == "CANCELLED"

    await eventually(is_given_up)


async def test_a_session_that_is_killed_for_its_time_limit_is_reported_each_time(court: CourtScene) -> None:
    court.has(work("look", {"hang": True}, timeout_seconds=1), retries=1)
    await court.until_event(await court.send_event(), EventStatus.FAILED)
    late = [data["soldier_id"] for _, data in await court.logged("soldier.timeout")]
    assert len(late) == 2
    killed = [data for _, data in await court.logged("recovery.session_killed")]
    assert killed == [{"soldier_id": soldier, "reason": "timeout"} for soldier in late]
    record = await court.record("sessions", "sessions")
    assert record
    assert record.doc == {}


@ONE_BACKEND
async def test_a_retry_that_can_never_work_ends_the_assignment(court: CourtScene) -> None:
    court.has(work("look", {"fail": "out of luck"}), retries=1, retry_after_seconds=3600)
    event_id = await court.send_event()

    async def waits_for_its_retry() -> bool:
        return any(task.retries for task in await court.assignments())

    await eventually(waits_for_its_retry)
    (task,) = await court.assignments()
    await delete_git(court.bus, "acme-app", actor="anna")
    async with court.bus.transaction() as transaction:
        await transaction.publish(retry_due(task.id, task.target_general))
    event = await court.until_event(event_id, EventStatus.FAILED)
    assert "acme-app" in event.reason
    await court.until_nothing_is_held()


@ONE_BACKEND
async def test_a_run_that_a_person_resumes_by_hand_needs_no_answer_any_more(court: CourtScene, tmp_path: Path) -> None:
    go = tmp_path / "go"
    court.has(work("look", {"ask": "Left or right?"}, {"wait_for": str(go)}, SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    await lifecycle.resume(court.bus, waiting.workflow_id, Continue(reply="left"), actor="anna")
    await court.until_assignment(AssignmentStatus.IN_PROGRESS)
    ignored = await court.until_event(await court.answer(waiting.id, "right"), EventStatus.COMPLETED)
    assert (ignored.outcome, ignored.reason) == ("ignored", "the question was already answered by a person")
    go.touch()
    await court.until_event(event_id, EventStatus.COMPLETED)
    await court.until_nothing_is_held()


@ONE_BACKEND
async def test_an_answer_to_a_run_that_was_resumed_by_hand_does_not_fail_the_assignment(
    court: CourtScene, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    court.has(work("look", {"ask": "Left or right?"}, {"wait_for": str(go)}, SUCCESS))
    event_id = await court.send_event()
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    async with court.bus.transaction() as transaction:
        await lifecycle.resume(transaction, waiting.workflow_id, Continue(reply="left"), actor="anna")
        answer = await court.answer(waiting.id, "right", transaction)
    await court.until_event(answer, EventStatus.COMPLETED)
    await court.until_assignment(AssignmentStatus.IN_PROGRESS)
    go.touch()
    await court.until_event(event_id, EventStatus.COMPLETED)
    await court.until_nothing_is_held()


@ONE_BACKEND
async def test_an_assignment_without_a_reported_result_fails_as_aborted(court: CourtScene) -> None:
    court.has(work("look", {"answer": "done, I think"}))
    event = await court.until_event(await court.send_event(), EventStatus.FAILED)
    assert event.reason == "aborted: no agent reported a result"


@ONE_BACKEND
async def test_an_unknown_repository_fails_the_assignment_and_says_what_to_do(court: CourtScene) -> None:
    court.has(work("look", SUCCESS))
    event = await court.until_event(await court.send_event(repo="acme/other"), EventStatus.FAILED)
    assert "kingdom git create acme.other ADDRESS --repo acme/other" in event.reason


async def test_without_a_host_an_assignment_waits_and_nothing_starts(backend: BackendUnderTest, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "machine", with_host=False) as court:
        court.has(work("look", SUCCESS))
        await court.send_event()
        task = await court.until_assignment(AssignmentStatus.PENDING)

        async def waits() -> bool:
            stats = {stats.stream: stats for stats in await court.operations.stats()}
            waiting = stats.get("court.task.gen-test")
            return waiting is not None and waiting.pending == 1 and waiting.processing == 0

        await eventually(waits)
        assert await court.record("workflow", f"wf-{task.id}") is None


@ONE_BACKEND
async def test_a_petition_that_the_policy_does_not_allow_is_refused_with_a_reason(court: CourtScene) -> None:
    court.has(work("look", {"petition": "github.comment", "body": {"body": "hello"}}, SUCCESS))
    await court.until_event(await court.send_event(), EventStatus.COMPLETED)
    ((_, refused),) = await court.logged("petition.refused")
    assert refused["reason"]


async def test_a_petition_that_could_not_be_performed_fails_its_assignment(court: CourtScene) -> None:
    court.has(
        work("look", {"petition": "github.comment", "body": {"body": "hello"}}, SUCCESS),
        petitions=(PetitionRule(kind="github.comment"),),
    )
    event_id = await court.send_event()

    async def asked_for() -> list[str]:
        return [str(data["petition_id"]) for _, data in await court.logged("petition.granted")]

    async def run_is_over_and_its_slots_are_free() -> bool:
        (task,) = await court.assignments()
        run = await court.record("workflow", f"wf-{task.id}")
        return run is not None and run.state == "COMPLETED" and not await court.held()

    async def granted() -> bool:
        return bool(await asked_for())

    await eventually(granted)
    await eventually(run_is_over_and_its_slots_are_free)
    assert (await court.event(event_id)).status is EventStatus.DISPATCHED
    (petition_id,) = await asked_for()
    async with court.bus.transaction() as transaction:
        await settle_petition(transaction, petition_id, PetitionState.FAILED, reason="HTTP 401: bad credentials")
    event = await court.until_event(event_id, EventStatus.FAILED)
    assert event.reason == "github.comment: HTTP 401: bad credentials"


async def test_a_general_whose_package_is_being_repaired_loses_no_event(court: CourtScene, tmp_path: Path) -> None:
    court.has(work("look", {"wait_for": str(tmp_path / "go")}, {"fail": "out of luck"}), retries=1)
    whole = court.packages["gen-test"]
    event_id = await court.send_event()
    await court.until_assignment(AssignmentStatus.IN_PROGRESS)
    court.packages.clear()
    (tmp_path / "go").touch()

    async def waits() -> bool:
        stats = {stats.stream: stats for stats in await court.operations.stats()}
        reported = stats.get("run.court")
        return reported is not None and reported.pending > 0 and reported.processing == 0

    await eventually(waits)
    assert (await court.event(event_id)).status is EventStatus.DISPATCHED
    court.packages["gen-test"] = whole
    assert (await court.assignments())[0].status is AssignmentStatus.IN_PROGRESS
