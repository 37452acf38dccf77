"""The stories of the court, checked by what people find afterwards: outside, in the store and in the log."""

from typing import Any

import pytest

from bench.court.court_processes import REPO
from tests.acceptance.court.court import Court, buttons
from tests.acceptance.court.opening import POLLED
from tests.acceptance.court.packages import BROKEN, BUSY, FAILURE, QUESTION, SCHEDULE
from tests.acceptance.court.stories import Asked, Story, Superseded, Unrouted

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
]


def texts(story: Story) -> list[str]:
    return [message["text"] for message in story.thread]


async def reviews(court: Court, repository: str, number: int) -> list[dict[str, Any]]:
    calls = await court.processes.calls("github", "POST review")
    return [call for call in calls if (call["repository"], call["number"]) == (repository, number)]


async def result(court: Court, task_id: str) -> dict[str, Any]:
    found = await court.document("result", task_id)
    assert found
    return found


async def test_a_review_that_a_webhook_asks_for_is_written_once(
    court: Court, review_by_hook: tuple[Story, int]
) -> None:
    story, number = review_by_hook
    (review,) = await reviews(court, REPO, number)
    assert review["body"].startswith("The scripted agent has looked at this pull request")
    assert (story.event.type, story.event.outcome) == ("github.pr.review_requested", "completed")
    # A poll may find the event before its webhook arrives; in both cases there is one event.
    assert [each.id for each in await court.assignments(repo=REPO, target_general="gen-pr")] == [story.task.id]


async def test_a_review_without_a_webhook_is_found_and_written_once(
    court: Court, review_by_poll: tuple[Story, int]
) -> None:
    story, number = review_by_poll
    assert len(await reviews(court, POLLED, number)) == 1
    assert (story.event.type, story.event.outcome) == ("github.pr.review_requested", "completed")
    assert "-hook-" not in story.event.id
    assert [each.id for each in await court.assignments(repo=POLLED)] == [story.task.id]


async def test_people_read_of_the_start_and_the_end_in_one_thread(review_by_hook: tuple[Story, int]) -> None:
    story, _ = review_by_hook
    task = story.task.id
    assert texts(story) == [
        f"gen-pr starts github.pr.review_requested in {REPO} as {task}.",
        f"{task} is completed: Reviewed without findings.",
    ]


async def test_a_review_leaves_its_result_the_messages_and_the_id_of_its_soldier(
    court: Court, review_by_hook: tuple[Story, int]
) -> None:
    story, _ = review_by_hook
    task = story.task.id
    final, raw = await result(court, task), await result(court, f"{task}-raw")
    assert (final["task_id"], final["status"], final["summary"]) == (task, "success", "Reviewed without findings.")
    assert final["metrics"]["cost_usd"] == pytest.approx(0.05)
    assert (raw["task_id"], raw["details"]) == (task, {"findings": 0})
    results = court.processes.realm / "state" / "results"
    (spawned,) = await court.logged_data("soldier.spawned", task_id=task)
    assert (results / f"{task}-soldier-id").read_text().split() == [spawned["soldier_id"]]
    assert len((results / f"{task}-session-id").read_text().split()) == 1
    prompt = (court.processes.realm / "state" / "prompts" / f"{task}.md").read_text()
    assert prompt.startswith("# review\n\n# Review pull request acme/shop#")


@pytest.mark.both_stores
async def test_an_approved_ticket_becomes_one_pull_request(court: Court, ticket: Asked) -> None:
    ours = [call for call in await court.processes.calls("github", "POST pull request") if call["repository"] == REPO]
    assert len(ours) == 1
    (ref,) = await court.processes.calls("github", "POST git ref")
    assert ref["ref"].startswith("refs/heads/kingdom/")
    issues = (await court.processes.look("github", "state"))["issues"][REPO].values()
    (pull,) = [each for each in issues if each["user"] == "kingdom-bot"]
    assert pull["title"] == "Write the manual"
    assert f"refs/heads/{pull['pull']['head']['ref']}" == ref["ref"]
    (comment,) = await court.processes.calls("jira", "POST comment")
    assert (comment["key"], comment["text"][:14]) == (ticket.event.payload["key"], "A pull request")
    assert ticket.event.outcome == "completed"


async def test_a_plan_is_approved_by_the_button_under_the_question(court: Court, ticket: Asked) -> None:
    assert list(buttons(ticket.question)) == ["approve", "reject"]
    assert ticket.question["thread_ts"] == ticket.thread[0]["ts"]
    # An answered question has no buttons.
    (question,) = [each for each in ticket.thread if each["ts"] == ticket.question["ts"]]
    assert buttons(question) == {}
    assert texts(ticket)[-1] == f"{ticket.task.id} is completed: Implemented as planned."
    works = [each["soldier_id"] for each in await court.logged_data("soldier.completed", task_id=ticket.task.id)]
    assert len(set(works)) == 2


async def test_a_question_is_asked_once_and_the_run_continues_with_the_answer(court: Court, question: Asked) -> None:
    posts = await court.processes.calls("slack", "chat.postMessage")
    assert [post["thread_ts"] for post in posts if post["text"] == QUESTION] == [question.thread[0]["ts"]]
    assert [text for text in texts(question) if QUESTION in text] == [
        f"{QUESTION}\nAnswered by <@{court.person}>: green"
    ]
    assert (question.awaited["question"], question.awaited["message_ts"]) == (QUESTION, question.question["ts"])
    assert question.waiting.status == "needs_human"
    assert (await result(court, question.task.id))["summary"] == "Painted it green."
    assert texts(question)[-1] == f"{question.task.id} is completed: Painted it green."
    assert question.task.id not in (await court.document("envoy", "awaiting-responses") or {})
    assert question.task.id not in (await court.document("envoy", "thread-mappings") or {})


async def test_a_resumed_assignment_names_its_root_and_ends_with_it(court: Court, question: Asked) -> None:
    root, resumed = question.task, question.resumed
    assert (resumed.type, resumed.root, resumed.status) == ("resume", root.id, "completed")
    assert (resumed.payload["text"], resumed.payload["user"]) == ("green", court.person)
    assert await court.logged_data("task.resumed", original_task_id=root.id) == [
        {"task_id": resumed.id, "original_task_id": root.id}
    ]
    assert await court.logged_data("task.needs_human", task_id=root.id) == [{"task_id": root.id, "question": QUESTION}]
    (answer,) = await court.events(type="slack.human_response", task_id=root.id)
    assert (answer.status, answer.outcome) == ("completed", "answered")
    assert answer.id.startswith(f"evt-slack-response-{root.id}-")


async def test_a_missed_schedule_fires_once(court: Court, schedule: Story) -> None:
    assert (schedule.task.event_id, schedule.task.type) == (f"schedule-{SCHEDULE}", "fireworks")
    assert schedule.task.payload == {"colour": "red"}
    assert schedule.event.id == f"evt-schedule-{SCHEDULE}-{schedule.event.created_at:%Y%m%d%H%M%S}"
    assert [each.id for each in await court.events(source="schedule")] == [schedule.event.id]
    assert [each.id for each in await court.assignments(target_general="gen-fires")] == [schedule.task.id]
    prompt = (court.processes.realm / "state" / "prompts" / f"{schedule.task.id}.md").read_text()
    assert f"It is {schedule.event.created_at:%Y-%m-%d}T00:00:00Z." in prompt


async def test_a_failure_shows_its_reason_wherever_people_look(court: Court, failure: Story) -> None:
    assert (failure.event.status, failure.event.outcome) == ("failed", "failed")
    (failed,) = await court.logged_data("task.failed", task_id=failure.task.id)
    assert failed["retry_count"] == failure.task.retries == 1
    final = await result(court, failure.task.id)
    assert final["status"] == "failed"
    messages = (failure.event.reason, failure.task.reason, final["error"], texts(failure)[-1], failed["error"])
    assert [FAILURE in text for text in messages] == [True] * 5
    assert len(await court.assignments(repo=BROKEN)) == 1


async def test_a_refusal_by_github_fails_the_assignment_despite_the_agents_report(court: Court, refusal: Story) -> None:
    reason = "github.review: GitHub answered 404: Not Found"
    final = await result(court, refusal.task.id)
    assert (final["status"], final["error"]) == ("failed", reason)
    assert (refusal.event.status, refusal.event.reason, refusal.task.reason) == ("failed", reason, reason)
    assert reason in texts(refusal)[-1]


async def test_an_unrouted_event_is_shown_with_the_reasons(unrouted: Unrouted) -> None:
    event = unrouted.shown
    assert (event["status"], event["outcome"], event["reason"]) == (
        "completed",
        "unrouted",
        "no rule of a General matches it",
    )
    assert event["id"] in [each["id"] for each in unrouted.listed]
    reasons = {each["general"]: each["reason"] for each in unrouted.why["considered"]}
    assert "repo is 'acme/nobodys'" in reasons["gen-fails"]


async def test_a_rerouted_event_is_completed_by_the_new_general(court: Court, unrouted: Unrouted) -> None:
    later = unrouted.later
    assert (later.event.id, later.event.outcome) == (unrouted.shown["id"], "completed")
    assert later.task.target_general == "gen-late"
    assert len(await court.logged_data("event.discarded", event_id=later.event.id)) == 1


async def test_a_newer_request_replaces_a_waiting_one(court: Court, superseded: Superseded) -> None:
    older, newer = superseded.older, superseded.newer.event
    assert (older.status, older.outcome, older.reason) == ("completed", "superseded", f"superseded by {newer.id}")
    assert older.payload["number"] == newer.payload["number"]
    (discarded,) = await court.logged_data("event.discarded", event_id=older.id)
    assert discarded["reason"] == older.reason
    done = [superseded.busy.task.id, superseded.newer.task.id]
    assert [each.id for each in await court.assignments(repo=BUSY)] == done
