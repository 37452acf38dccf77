"""Queued messages reach people in Slack: in their thread, in order, exactly once."""

import signal

import pytest

from kingdom.court.documents import MessageType
from kingdom.court.envoy.records import MessageThread, save_entry
from kingdom.court.envoy.settings import EnvoySettings
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.court.streams import message_queued
from tests.integration.court.envoy.scene import DEV, TASK, Scene, slack_settings
from tests.integration.running import eventually


async def test_an_assignment_has_one_thread_with_all_messages_in_order(scene: Scene) -> None:
    first = await scene.begin()
    later = [await scene.update(f"step {number}") for number in range(5)]
    async with scene.envoy(listens=False):
        await scene.is_sent(first, *later)
    root, *replies = await scene.app_messages()
    assert [each["text"] for each in (root, *replies)] == [first.content, *(each.content for each in later)]
    assert {each["thread_ts"] for each in replies} == {root["ts"]}
    [mapping] = (await scene.remembered("thread-mappings")).values()
    assert (mapping["channel"], mapping["thread_ts"]) == (scene.channel, root["ts"])
    sent = await scene.log("message.sent")
    assert [entry.data for entry in sent] == [
        {"msg_id": each.id, "task_id": TASK, "channel": scene.channel} for each in (first, *later)
    ]
    assert {entry.actor for entry in sent} == {"envoy"}


async def test_messages_request_that_slack_does_not_unfurl_links(scene: Scene, dana: str) -> None:
    async with scene.envoy(), scene.king():
        begin = await scene.begin("See https://example.org/?secret=1")
        await scene.is_sent(begin, await scene.update("And https://example.org/a.png"))
        await scene.is_sent(await scene.ask_person("Is https://example.org/b.png fine?", "yes"))
        *_, question = await scene.app_messages()
        await scene.click(question, dana)

        async def is_ended() -> bool:
            return bool(await scene.slack.calls("chat.update"))

        await eventually(is_ended)
    messenger = SlackMessenger(slack_settings(scene.slack.url))
    await messenger.open()
    await messenger.whisper(scene.channel, "", dana, "Not https://example.org/c.png")
    await messenger.close()
    for name in ("postMessage", "update", "postEphemeral"):
        calls = await scene.slack.calls(f"chat.{name}")
        assert calls
        assert {(call["unfurl_links"], call["unfurl_media"]) for call in calls} == {(False, False)}


@pytest.mark.parametrize("status", ["completed", "failed", "skipped"])
async def test_the_end_of_an_assignment_ends_its_thread(scene: Scene, status: str) -> None:
    await scene.begin()
    asked = await scene.ask_person()
    last = await scene.update("It is over.", status=status)
    async with scene.envoy(listens=False):
        await scene.is_sent(asked, last)
    root, question, end = await scene.app_messages()
    assert question["thread_ts"] == end["thread_ts"] == root["ts"]
    assert await scene.remembered("thread-mappings") == {}
    assert await scene.remembered("awaiting-responses") == {}
    assert (await scene.open_question()).status == "expired"


async def test_a_message_that_cannot_be_sent_to_a_thread_is_sent_outside_of_it(scene: Scene) -> None:
    lost = await scene.send_message(MessageType.THREAD_START, "gone", channel="nowhere", task_id=TASK)
    update = await scene.update("still here")
    async with scene.envoy(listens=False):
        await scene.is_sent(update)
        [reason] = await scene.dead()
    assert "channel_not_found" in reason
    assert "invite the app" in reason
    assert (await scene.message(lost)).status == "pending"
    [message] = await scene.app_messages()
    assert "thread_ts" not in message


async def test_a_message_for_another_channel_is_sent_there(scene: Scene) -> None:
    ops = await scene.slack.do("channels", name="ops")
    async with scene.envoy(listens=False):
        await scene.is_sent(await scene.begin())
        here = await scene.send_message(MessageType.NOTIFICATION, "for all", channel=f"#{DEV}", task_id=TASK)
        there = await scene.send_message(MessageType.NOTIFICATION, "for ops", channel="ops", task_id=TASK)
        await scene.is_sent(here, there)
    root, reply = await scene.app_messages()
    assert (reply["text"], reply["thread_ts"]) == ("for all", root["ts"])
    [elsewhere] = await scene.app_messages(ops["id"])
    assert (elsewhere["text"], "thread_ts" in elsewhere) == ("for ops", False)


async def test_a_person_gets_a_direct_message_and_the_thread_continues_there(scene: Scene, dana: str) -> None:
    first = await scene.send_message(MessageType.THREAD_START, "psst", channel=dana, task_id=TASK)
    update = await scene.send_message(MessageType.THREAD_UPDATE, "more", channel=dana, task_id=TASK)
    async with scene.envoy(listens=False):
        await scene.is_sent(first, update)
    [mapping] = (await scene.remembered("thread-mappings")).values()
    assert mapping["channel"].startswith("D")
    root, reply = await scene.app_messages(mapping["channel"])
    assert reply["thread_ts"] == root["ts"]


async def test_a_message_that_slack_throttles_is_sent_again_and_posted_once(scene: Scene) -> None:
    await scene.slack.trouble(kind="refuse", path="/api/chat.postMessage", status=429, retry_after=1)
    first = await scene.begin()
    async with scene.envoy(listens=False):
        await scene.is_sent(first)
    assert await scene.attempts(first) == ["THROTTLED", "ACKED"]
    assert await scene.posted() == 1


async def test_many_messages_arrive_once_each_although_slack_accepts_one_a_second(scene: Scene) -> None:
    await scene.slack.do("settings", rate_limit=True)
    first = await scene.begin()
    later = [await scene.update(f"step {number}") for number in range(2)]
    async with scene.envoy(listens=False):
        await scene.is_sent(first, *later)
    assert await scene.texts() == [first.content, "step 0", "step 1"]


@pytest.mark.parametrize("trouble", ["lose_answer", "truncate"])
@pytest.mark.parametrize("where", ["start", "thread"])
async def test_a_message_whose_answer_is_lost_is_found_and_not_repeated(scene: Scene, trouble: str, where: str) -> None:
    async with scene.envoy(listens=False):
        message = await scene.begin()
        if where == "thread":
            await scene.is_sent(message)
            await scene.slack.trouble(kind=trouble, path="/api/chat.postMessage")
            message = await scene.update("more")
        else:
            await scene.slack.trouble(kind=trouble, path="/api/chat.postMessage")
            message = await scene.send_message(MessageType.NOTIFICATION, "by the way")
        await scene.is_sent(message)
    assert await scene.attempts(message) == ["ACKED"]
    assert len({call["text"] for call in await scene.slack.calls("chat.postMessage")}) == await scene.posted() == 2


async def test_a_message_is_sent_again_after_slack_answered_with_an_error(scene: Scene) -> None:
    await scene.slack.trouble(kind="refuse", path="/api/chat.postMessage", status=500)
    first = await scene.begin()
    async with scene.envoy(listens=False):
        await scene.is_sent(first)
    assert await scene.attempts(first) == ["UNKNOWN", "ACKED"]
    assert await scene.posted() == 1


@pytest.mark.both_stores
@pytest.mark.parametrize(("moment", "posted"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_exactly_one_message(scene: Scene, moment: str, posted: int) -> None:
    first = await scene.begin()
    update = await scene.update("and then")
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert await scene.posted() == posted
    assert await scene.attempts(first) == ["SENT"]
    async with scene.envoy(listens=False):
        await scene.is_sent(first, update)
    assert await scene.texts() == [first.content, "and then"]
    assert await scene.attempts(first) == (["ACKED"] if posted else ["UNKNOWN", "ACKED"])
    [mapping] = (await scene.remembered("thread-mappings")).values()
    assert mapping["thread_ts"] == (await scene.app_messages())[0]["ts"]
    assert len(await scene.log("message.sent")) == 2


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_an_earlier_message_is_found_after_the_channel_was_changed(scene: Scene) -> None:
    await scene.slack.do("channels", name="ops")
    await scene.slack.trouble(kind="lose_answer", path="/api/chat.postMessage")

    async def is_posted() -> bool:
        return await scene.posted() == 1

    async with scene.envoy(listens=False):
        message = await scene.send_message(MessageType.NOTIFICATION, "The disk is full.", channel="")
        await eventually(is_posted)
    moved = EnvoySettings(slack=slack_settings(scene.slack.url, listens=False), channel="ops")
    async with scene.envoy(listens=False, settings=moved):
        await scene.is_sent(message)
    assert await is_posted()


async def test_a_message_is_sent_outside_of_a_thread_whose_first_message_was_deleted(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        deleted = MessageThread(channel=scene.channel, thread_ts="1700000000.000001", created_at=scene.clock())
        await save_entry(transaction, TASK, deleted)
    async with scene.envoy(listens=False):
        await scene.is_sent(await scene.update("still here"))
    [message] = await scene.app_messages()
    assert (message["text"], "thread_ts" in message) == ("still here", False)


async def test_a_report_is_sent_once_however_often_it_is_queued(scene: Scene) -> None:
    report = await scene.send_message(MessageType.REPORT, "Daily report", date="2026-11-14")
    for _ in range(3):
        await scene.bus.publish(message_queued(report.id, "chamberlain"))
    async with scene.envoy(listens=False):
        await scene.is_sent(report)
        await scene.is_sent(await scene.send_message(MessageType.NOTIFICATION, "done"))
    assert await scene.texts() == ["Daily report", "done"]
    assert await scene.remembered("report-sent") == {"date": "2026-11-14"}


@pytest.mark.both_stores
async def test_a_question_is_asked_once_although_it_is_queued_again_and_a_process_is_killed(
    scene: Scene,
) -> None:
    asked = await scene.ask_person("Merge it?", "yes")
    assert await scene.run_until_killed("after") == -signal.SIGKILL
    for _ in range(3):
        await scene.bus.publish(message_queued(asked.id, TASK))
    async with scene.envoy(listens=False), scene.envoy(listens=False):
        await scene.is_sent(asked)
        await scene.is_sent(await scene.update("more"))
    assert await scene.texts() == ["Merge it?", "more"]
    [awaited] = (await scene.remembered("awaiting-responses")).values()
    assert awaited["message_ts"] == (await scene.app_messages())[0]["ts"]


async def test_mentions_in_the_text_of_a_message_are_escaped(scene: Scene) -> None:
    message = await scene.send_message(MessageType.NOTIFICATION, "see <!channel> & <@U123>")
    async with scene.envoy(listens=False):
        await scene.is_sent(message)
    assert await scene.texts() == ["see &lt;!channel&gt; &amp; &lt;@U123&gt;"]


async def test_the_message_that_began_an_assignment_shows_its_state(scene: Scene, dana: str) -> None:
    wish = await scene.slack.do("messages", channel=DEV, user=dana, text="please")
    event_id = await scene.slack_event(wish["ts"])

    async def shows(*names: str) -> None:
        async def is_shown() -> bool:
            state = await scene.slack.look("state")
            [message] = [each for each in state["messages"][scene.channel] if each["ts"] == wish["ts"]]
            return sorted(each["name"] for each in message.get("reactions", [])) == sorted(names)

        await eventually(is_shown)

    async with scene.envoy(listens=False):
        await scene.begin()
        await scene.ask_person(event_id=event_id)
        await shows("raising_hand")
        await scene.update("done", status="completed")
        await shows("white_check_mark")
