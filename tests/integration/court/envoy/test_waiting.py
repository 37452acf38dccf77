"""Questions that wait: people are reminded and warned once, and closed questions are cleaned up."""

from datetime import timedelta

import pytest

from kingdom.court.documents import AssignmentStatus
from kingdom.court.envoy.records import ShownQuestion
from kingdom.court.envoy.reminders import clean_up_questions
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.court.questions import save_question
from kingdom.court.records import MESSAGES
from kingdom.errors import Transient
from tests.integration.court.envoy.scene import TASK, Scene, slack_settings
from tests.integration.running import eventually


async def reminders(scene: Scene) -> list[str]:
    async with scene.bus.transaction() as transaction:
        records = [await transaction.get(MESSAGES.name, each) for each in await scene.message_ids()]
    return [record.doc["content"] for record in records if record and record.doc["context"].get("reminder")]


async def test_people_are_reminded_after_a_day_and_warned_after_a_week_once_each(scene: Scene) -> None:
    async with scene.envoy(listens=False) as envoy:
        await scene.begin()
        await scene.is_sent(
            await scene.ask_person("Merge it?", due_at=scene.clock() + timedelta(days=10), default="no")
        )
        reported = []
        for hours in (1, 24, 24, 24 * 6, 24):
            scene.clock.ahead += timedelta(hours=hours)
            await envoy.remind()
            await envoy.remind()
            reported.append(len(await reminders(scene)))
        assert reported == [0, 1, 1, 2, 2]

        async def are_posted() -> bool:
            return len(await scene.app_messages()) == 4

        await eventually(are_posted)
        root, _, reminder, warning = await scene.app_messages()
    assert reminder["thread_ts"] == warning["thread_ts"] == root["ts"]
    assert "waited for a day: Merge it?" in reminder["text"]
    assert "No answer for 8 days" in warning["text"]
    assert ", the answer is 'no'." in warning["text"]


async def test_a_question_that_waited_without_an_envoy_gets_one_warning_and_no_reminder(scene: Scene) -> None:
    await scene.ask_person()
    scene.clock.ahead = timedelta(days=9)
    async with scene.envoy(listens=False) as envoy:
        await envoy.remind()
        await envoy.remind()
    [reminder] = await reminders(scene)
    assert reminder.startswith("No answer for 9 days")


async def test_no_reminder_is_sent_for_an_overdue_question(scene: Scene) -> None:
    await scene.ask_person(due_at=scene.clock() + timedelta(hours=30))
    scene.clock.ahead = timedelta(hours=31)
    async with scene.envoy(listens=False) as envoy:
        await envoy.remind()
    assert await reminders(scene) == []
    assert (await scene.open_question()).status == "open"


@pytest.mark.parametrize(("ending", "shown"), [("answered", "Answered by root: no"), ("expired", "No answer in time")])
async def test_a_closed_question_loses_its_buttons(scene: Scene, ending: str, shown: str) -> None:
    async with scene.envoy():
        await scene.begin()
        await scene.is_sent(await scene.ask_person("Merge it?", "yes", "no"))
    ask = await scene.open_question()
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("ask", TASK)
        over = ask.with_answer("root", "no") if ending == "answered" else ask.as_expired()
        await save_question(transaction, over, record)
    place = SlackMessenger(slack_settings(scene.slack.url))
    await place.open()
    try:
        await scene.slack.trouble(kind="refuse", path="/api/chat.update", status=500)
        await clean_up_questions(scene.bus, place, scene.clock())
        assert TASK in await scene.remembered("awaiting-responses")
        await clean_up_questions(scene.bus, place, scene.clock())
    finally:
        await place.close()
    _, question = await scene.app_messages()
    assert shown in question["text"]
    assert all(block["type"] != "actions" for block in question["blocks"])
    assert await scene.remembered("awaiting-responses") == {}


async def test_a_question_that_was_answered_before_people_saw_it_has_no_buttons(scene: Scene) -> None:
    message = await scene.ask_person("Merge it?", "yes")
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("ask", TASK)
        await save_question(transaction, (await scene.open_question()).with_answer("root", "yes"), record)
    async with scene.envoy():
        await scene.is_sent(message)

        async def is_ended() -> bool:
            [question] = await scene.app_messages()
            return all(block["type"] != "actions" for block in question["blocks"])

        await eventually(is_ended)
    assert await scene.remembered("awaiting-responses") == {}


async def test_a_thread_whose_assignment_is_gone_is_forgotten_after_a_day(scene: Scene) -> None:
    async with scene.envoy(listens=False) as envoy:
        await scene.is_sent(await scene.begin())
        await envoy.remind()
        assert TASK in await scene.remembered("thread-mappings")
        scene.clock.ahead = timedelta(days=1, minutes=1)
        await envoy.remind()
    assert await scene.remembered("thread-mappings") == {}


async def test_an_assignment_that_ends_after_a_month_is_reported_in_its_thread(scene: Scene) -> None:
    async with scene.envoy(listens=False) as envoy:
        await scene.is_sent(await scene.begin())
        scene.clock.ahead = timedelta(days=30)
        await scene.assignment(AssignmentStatus.COMPLETED)
        await envoy.remind()
        await scene.is_sent(await scene.update("All is done.", status="completed"))
    root, end = await scene.app_messages()
    assert end["thread_ts"] == root["ts"]
    assert await scene.remembered("thread-mappings") == {}


async def test_a_change_that_slack_refuses_is_an_expected_error(scene: Scene) -> None:
    shown = ShownQuestion(
        msg_id="msg-1", channel=scene.channel, message_ts="1.0", thread_ts="1.0", question="?", created_at=scene.clock()
    )
    place = SlackMessenger(slack_settings(scene.slack.url))
    await place.open()
    try:
        with pytest.raises(Transient, match="Slack refused it: message_not_found"):
            await place.end_question(shown, "Answered.")
        await scene.slack.trouble(kind="refuse", path="/api/chat.update", status=500)
        with pytest.raises(Transient, match="Slack refused it: internal_error"):
            await place.end_question(shown, "Answered.")
    finally:
        await place.close()
