"""The answer of a person continues an assignment, once."""

from datetime import timedelta

import pytest

from kingdom.court.documents import AssignmentStatus, ExternalEvent, Priority
from kingdom.court.envoy.answers import PersonAnswer, submit_answer
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.timers import run_timers_once
from kingdom.court.questions import (
    APPROVE,
    REJECT,
    WITHOUT_RUN,
    HumanQuestion,
    QuestionStatus,
    load_question,
    save_question,
)
from kingdom.court.streams import EVENT_STREAM
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.unit.court.king.making import make_event, make_package, wants

PR = make_package("gen-pr", wants("github.pr.*"))


def reply(number: int, task_id: str, text: str = "yes", user: str = "anna", **more: str) -> ExternalEvent:
    payload = {"task_id": task_id, "text": text, "user": user, **more}
    return make_event(
        number, "slack.human_response", source="slack", repo=None, payload=payload, priority=Priority.HIGH
    )


async def asking(scene: Scene, **more: object) -> str:
    """Let the assignment of the first event ask a question, and return it."""
    await scene.send(make_event(1))
    task = await scene.assignment_of("evt-github-1")
    await scene.ask_person(task, **more)
    return task


async def test_the_first_answer_lets_the_assignment_continue_and_a_second_is_ignored(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        await scene.send(reply(2, task, "yes"), reply(3, task, "no", "bob"))
        root, resumed = await scene.assigned()
        assert (resumed.type, resumed.root, resumed.event_id) == ("resume", root.id, "evt-github-1")
        assert (resumed.target_general, resumed.repo, resumed.status) == ("gen-pr", "acme/app", "pending")
        assert resumed.payload["text"] == "yes"
        first, second = [await scene.event(f"evt-slack-{number}") for number in (2, 3)]
        assert (first.status, first.outcome) == ("completed", "answered")
        assert (second.status, second.outcome) == ("completed", "ignored")
        assert second.reason == "the question was already answered by anna"
        (entry,) = await scene.log("task.resumed")
        assert entry.data == {"task_id": resumed.id, "original_task_id": root.id}


async def test_an_answer_needs_no_free_slot_and_no_healthy_machine(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=1)) as scene:
        task = await asking(scene)
        await scene.send(make_event(2))
        await scene.set_health("red")
        await scene.send(reply(3, task))
        holders = (await scene.quota("soldiers")).holders
        assert sorted(holders) == ["task-20261115-002", "task-20261115-003"]
        assert (await scene.quota("repo:acme/app")).holders.keys() == holders.keys()


async def test_an_answer_waits_for_money(backend: BackendUnderTest) -> None:
    settings = KingSettings(daily_usd=10, reserved_usd=6)
    async with opened(backend, PR, settings=settings) as scene:
        task = await asking(scene)
        await scene.send(make_event(2), reply(3, task))
        assert (await scene.waiting_lines())["evt-slack-3"] == "answer"
        assert (await scene.event("evt-slack-3")).status == "pending"
        await scene.complete(await scene.assignment_of("evt-github-2"))
        assert (await scene.event("evt-slack-3")).outcome == "answered"
        assert (await scene.quota("money")).held == 6


async def test_expensive_answers_that_wait_for_money_do_not_hide_an_affordable_one(
    backend: BackendUnderTest,
) -> None:
    settings = KingSettings(soldiers=9, soldiers_per_repo=9, daily_usd=100, reserved_usd=1)
    async with opened(backend, PR, settings=settings) as scene:
        # The last assignment still runs, and keeps its share of the reserved money.
        await scene.send(*(make_event(number) for number in range(1, 9)))
        tasks = [await scene.assignment_of(f"evt-github-{number}") for number in range(1, 8)]
        for task in tasks:
            await scene.ask_person(task, usd=0.5 if task == tasks[-1] else 100)
        await scene.send(*(reply(number, task) for number, task in enumerate(tasks, start=11)))
        outcomes = [(await scene.event(f"evt-slack-{number}")).outcome for number in range(11, 18)]
        assert outcomes == [*[""] * 6, "answered"]


async def test_the_end_of_a_resumed_assignment_completes_the_event_of_its_root(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        await scene.send(reply(2, task))
        _, resumed = await scene.assigned()
        await scene.complete(resumed.id, cost_usd=2.0)
        await scene.complete(task, cost_usd=2.0)
        assert (await scene.event("evt-github-1")).status == "completed"
        assert not (await scene.quota("soldiers")).holders
        # Two assignments of one run cost it once, and its end is reported once.
        assert float((await scene.quota("money")).spent) == 2.0
        assert [text for text in await scene.messages() if text.startswith("thread_update")] == [
            f"thread_update: {task} is completed."
        ]


async def test_a_late_release_notice_takes_no_slots_from_the_resumed_assignment(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        await scene.send(reply(2, task))
        await scene.store_assignment(task, AssignmentStatus.NEEDS_HUMAN)
        assert list((await scene.quota("soldiers")).holders) == ["task-20261115-002"]


async def test_an_event_does_not_answer_the_question_about_a_petition(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        petition = f"{task}-3f9a01bc"
        question = HumanQuestion(
            id=petition,
            assignment_id=task,
            general="gen-pr",
            workflow_id=WITHOUT_RUN,
            petition=petition,
            text="May I push?",
            choices=(APPROVE, REJECT),
            exact=True,
            asked_at=scene.clock(),
            due_at=scene.clock() + timedelta(days=7),
        )
        async with scene.bus.transaction() as transaction:
            await save_question(transaction, question)
        await scene.send(reply(2, petition, "approve"))
        event = await scene.event("evt-slack-2")
        assert (event.outcome, event.reason) == (
            "ignored",
            f"{petition} is a petition, which no event approves: `kingdom inbox` shows it",
        )
        async with scene.bus.transaction() as transaction:
            known = await load_question(transaction, petition)
        assert known
        assert known[1].status is QuestionStatus.OPEN


async def test_a_message_that_is_not_an_answer_is_ignored_with_its_reason(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(reply(2, "task-20261115-999"))
        task = await asking(scene, people=("anna",))
        await scene.send(reply(3, task, user="mallory"), reply(4, task, text="  "))
        reasons = [(await scene.event(f"evt-slack-{number}")).reason for number in (2, 3, 4)]
        assert reasons == [
            "task-20261115-999 has no question",
            "mallory may not answer; allowed: anna",
            "the answer is empty",
        ]
        await scene.store_assignment(task, AssignmentStatus.FAILED)
        await scene.send(reply(5, task))
        assert (await scene.event("evt-slack-5")).reason == f"{task} is not waiting for an answer, it is failed"
        assert len(await scene.assigned()) == 1


async def test_the_default_answer_counts_if_no_answer_comes_in_time(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene, default="leave it", people=("anna",))
        scene.clock.forward(days=6)
        await scene.tick()
        assert len(await scene.assigned()) == 1
        scene.clock.forward(days=1)
        await scene.tick()
        await scene.tick()
        _, resumed = await scene.assigned()
        assert (resumed.root, resumed.payload["text"]) == (task, "leave it")


async def test_a_question_without_a_default_expires_and_no_answer_counts_any_more(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        scene.clock.forward(days=7)
        await scene.tick()
        async with scene.bus.transaction() as transaction:
            known = await load_question(transaction, task)
        assert known
        assert known[1].status is QuestionStatus.EXPIRED
        await scene.send(reply(2, task))
        assert (await scene.event("evt-slack-2")).reason == "the time for an answer is over"


async def status_with_unhandled_answer(scene: Scene, question_id: str, *, days: int) -> QuestionStatus:
    """Answer a question whose King does not handle events. Return its status some days later."""
    await scene.operations.pause(EVENT_STREAM.name, reason="repairs", actor="anna")
    answer = PersonAnswer(source="slack", question_id=question_id, text="yes", person="anna", at="1")
    async with scene.bus.transaction() as transaction:
        assert (await submit_answer(transaction, answer, scene.clock())).is_new
    scene.clock.forward(days=days)
    await run_timers_once(scene.bus, scene.context)
    async with scene.bus.transaction() as transaction:
        known = await load_question(transaction, question_id)
    assert known
    return known[1].status


@pytest.mark.parametrize("default", ["", "leave it"])
async def test_an_answer_given_in_time_counts_although_the_king_handles_it_after_the_deadline(
    backend: BackendUnderTest, default: str
) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene, default=default)
        assert await status_with_unhandled_answer(scene, task, days=8) is QuestionStatus.OPEN
        await scene.operations.resume(EVENT_STREAM.name, actor="anna")
        await scene.settle()
        assert [each.payload.get("text") for each in await scene.assigned()][1:] == ["yes"]
        assert len(await scene.find("event")) == 2


async def test_a_question_ends_although_its_answer_is_never_handled(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        assert await status_with_unhandled_answer(scene, task, days=15) is QuestionStatus.EXPIRED


async def test_an_assignment_may_ask_again(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        await scene.send(reply(2, task))
        _, resumed = await scene.assigned()
        scene.clock.forward(minutes=5)
        await scene.ask_person(resumed.id)
        later = reply(3, resumed.id, "go on")
        await scene.send(later)
        *_, third = await scene.assigned()
        assert (third.root, third.payload["text"]) == (task, "go on")
        assert third.created_at - resumed.created_at == timedelta(minutes=5)


async def test_an_answer_to_an_earlier_question_does_not_answer_the_next_one(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        task = await asking(scene)
        first = scene.clock().isoformat()
        await scene.send(reply(2, task, asked_at=first))
        _, resumed = await scene.assigned()
        scene.clock.forward(minutes=5)
        await scene.ask_person(resumed.id)
        await scene.send(reply(3, task, "too late", asked_at=first))
        assert (await scene.event("evt-slack-3")).reason == "that question is closed"
        await scene.send(reply(4, task, "in time", asked_at=scene.clock().isoformat()))
        assert (await scene.assigned())[-1].payload["text"] == "in time"
