"""Messages of people in Slack: answers, requests, and unrelated ones. Each is received once."""

import asyncio
from functools import partial
from typing import Any

import pytest

from kingdom.court.documents import Priority
from kingdom.court.envoy.answers import PersonAnswer, submit_answer
from kingdom.court.envoy.receiving import read_message, receive_message
from kingdom.workflow.records import run_transaction
from tests.integration.court.envoy.scene import DEV, TASK, BarredBus, Scene
from tests.integration.running import eventually


async def asked(scene: Scene, *choices: str, **more: Any) -> dict[str, Any]:
    """Ask in a thread, and return the question as people see it."""
    await scene.begin()
    await scene.is_sent(await scene.ask_person("Merge <it>?", *choices, **more))
    return (await scene.app_messages())[-1]


async def ephemerals(scene: Scene, count: int) -> list[dict[str, Any]]:
    async def are_there() -> bool:
        return len((await scene.slack.look("state"))["ephemerals"]) >= count

    await eventually(are_there)
    return list((await scene.slack.look("state"))["ephemerals"])


async def looks_ended(scene: Scene, ts: str) -> dict[str, Any]:
    """Wait until a question has no buttons, and return it."""

    async def has_no_buttons() -> bool:
        [message] = [each for each in await scene.app_messages() if each["ts"] == ts]
        return all(block["type"] != "actions" for block in message["blocks"])

    await eventually(has_no_buttons)
    return next(each for each in await scene.app_messages() if each["ts"] == ts)


async def test_a_question_has_a_button_for_each_choice(scene: Scene) -> None:
    async with scene.envoy():
        question = await asked(scene, "approve", "reject")
    [actions] = [block for block in question["blocks"] if block["type"] == "actions"]
    assert [each["text"]["text"] for each in actions["elements"]] == ["approve", "reject"]
    awaited = (await scene.remembered("awaiting-responses"))[TASK]
    assert (awaited["channel"], awaited["message_ts"]) == (scene.channel, question["ts"])
    assert awaited["thread_ts"] == question["thread_ts"] == (await scene.app_messages())[0]["ts"]


async def test_a_reply_in_the_thread_of_a_question_is_its_answer(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene)
        reply = await scene.reply(question["thread_ts"], dana, "use main &amp; go", mention=True)
        [event] = await scene.wait_for_events()
        ended = await looks_ended(scene, question["ts"])
    assert event.id == f"evt-slack-response-{TASK}-{reply['ts']}"
    assert (event.type, event.source, event.priority) == ("slack.human_response", "slack", Priority.HIGH)
    assert event.payload == {
        "task_id": TASK,
        "text": "use main & go",
        "user": dana,
        "thread_ts": question["thread_ts"],
        "asked_at": (await scene.open_question()).asked_at.isoformat(),
    }
    assert await scene.remembered("awaiting-responses") == {}
    assert f"<@{dana}>" in ended["text"]
    [entry] = await scene.log("message.human_response")
    assert (entry.data, entry.actor) == ({"task_id": TASK, "thread_ts": question["thread_ts"]}, "envoy")


async def test_a_click_is_an_answer_and_removes_the_buttons(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene, "approve", "reject")
        clicked = await scene.click(question, dana, 1)
        assert clicked["acknowledged"]
        [event] = await scene.wait_for_events()
        ended = await looks_ended(scene, question["ts"])
    assert event.payload["text"] == "reject"
    assert event.payload["user"] == dana
    assert "reject" in ended["text"]


@pytest.mark.parametrize("name", ["block_actions", "message"])
async def test_an_event_that_slack_delivers_twice_is_one_event(scene: Scene, dana: str, name: str) -> None:
    async with scene.envoy():
        question = await asked(scene, "approve")
        await scene.slack.trouble(kind="repeat", method="PUSH", path=name)
        if name == "message":
            await scene.reply(question["thread_ts"], dana, "approve")
        else:
            await scene.click(question, dana)
        await scene.wait_for_events()
        # Messages arrive in order, so the repetition has arrived before this one.
        await scene.slack.do("messages", user=dana, text="psst")
        events = await scene.wait_for_events(2)
    assert sorted(event.type for event in events) == ["slack.channel.message", "slack.human_response"]
    assert len(await scene.log("message.human_response")) == 1
    assert (await scene.slack.look("state"))["ephemerals"] == []


async def test_an_event_that_could_not_be_stored_is_not_acknowledged(scene: Scene, dana: str) -> None:
    await scene.slack.do("settings", ack_seconds=0.5, retries=1000)
    store = BarredBus(scene.bus)
    async with scene.envoy(bus=store):
        question = await asked(scene)
        await scene.slack.wait_until_nothing_is_pending()
        store.barred = True
        await scene.reply(question["thread_ts"], dana, "yes")

        async def was_delivered_twice() -> bool:
            return store.refused >= 2

        await eventually(was_delivered_twice)
        assert len((await scene.slack.look("state"))["pending"]) == 1
        store.barred = False
        [event] = await scene.wait_for_events()
    assert event.payload["text"] == "yes"


async def test_a_person_who_may_not_answer_gets_a_private_notice(scene: Scene, dana: str) -> None:
    stranger = await scene.slack.person("sid", in_channel=DEV)
    async with scene.envoy():
        question = await asked(scene, "approve", people=(dana,))
        await scene.reply(question["thread_ts"], stranger, "approve")
        await ephemerals(scene, 1)
        await scene.click(question, stranger)
        notes = await ephemerals(scene, 2)
        assert await scene.events() == []
        await scene.click(question, dana)
        [event] = await scene.wait_for_events()
    assert {note["user"] for note in notes} == {stranger}
    assert all(f"<@{dana}>" in note["text"] for note in notes)
    assert event.payload["user"] == dana


async def test_a_button_of_an_earlier_question_answers_nothing(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        first = await asked(scene, "approve")
        # Slack does not remove the button.
        await scene.slack.trouble(kind="refuse", path="/api/chat.update", status=500)
        await scene.is_sent(await scene.ask_person("And this?", "approve"))
        await scene.click(first, dana)
        [note] = await ephemerals(scene, 1)
        assert await scene.events() == []
    assert "closed" in note["text"]


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_mentions_in_the_text_of_a_waiting_answer_are_escaped(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene, "approve")
        typed = PersonAnswer(source="cli", question_id=TASK, text="ask <!channel>", person="root", at="1")
        await run_transaction(scene.bus, partial(submit_answer, answer=typed, now=scene.clock()))
        await scene.click(question, dana)
        [note] = await ephemerals(scene, 1)
    assert "by root: ask &lt;!channel&gt;; the King processes that answer" in note["text"]


@pytest.mark.both_stores
async def test_only_one_of_two_concurrent_answers_from_slack_and_the_command_line_counts(
    scene: Scene, dana: str
) -> None:
    async with scene.envoy():
        question = await asked(scene, "approve", "reject")
        typed = PersonAnswer(source="cli", question_id=TASK, text="reject", person="root", at="1")
        await asyncio.gather(
            scene.click(question, dana),
            run_transaction(scene.bus, lambda transaction: submit_answer(transaction, typed, scene.clock())),
        )
        [event] = await scene.wait_for_events()
        async with scene.king():
            await scene.is_answered()
    assert (await scene.open_question()).answer == event.payload["text"]


async def test_a_second_person_learns_that_another_answer_counted(scene: Scene, dana: str) -> None:
    async with scene.envoy(), scene.king():
        question = await asked(scene, "approve")
        await scene.click(question, dana)
        await scene.is_answered()
        typed = PersonAnswer(source="cli", question_id=TASK, text="reject", person="root", at="1")
        taken = await run_transaction(scene.bus, lambda transaction: submit_answer(transaction, typed, scene.clock()))
    assert "already answered" in taken.refusal
    assert len(await scene.events()) == 1


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_an_answer_that_the_king_ignored_does_not_prevent_another_answer(scene: Scene) -> None:
    async def is_judged() -> bool:
        return all(event.outcome for event in await scene.events())

    await scene.ask_person()
    await scene.assignment()
    for number in ("1", "2"):
        typed = PersonAnswer(source="cli", question_id=TASK, text="yes", person="root", at=number)
        assert (await run_transaction(scene.bus, partial(submit_answer, answer=typed, now=scene.clock()))).is_new
        async with scene.king():
            await eventually(is_judged)
    assert [event.outcome for event in await scene.events()] == ["ignored", "ignored"]


async def test_an_answer_that_slack_delivers_again_is_not_a_second_answer(scene: Scene, dana: str) -> None:
    async with scene.envoy(), scene.king():
        question = await asked(scene, "approve")
        reply = await scene.reply(question["thread_ts"], dana, "approve", mention=True)
        await scene.is_answered()
        await scene.slack.wait_until_nothing_is_pending()
        for kind in ("message", "app_mention"):
            again = read_message({**reply, "type": kind})
            assert again
            taken = await run_transaction(scene.bus, partial(receive_message, message=again, now=scene.clock()))
            assert (taken.is_new, taken.refusal) == (False, "")
    assert len(await scene.events()) == 1


async def test_a_mention_and_a_direct_message_become_events(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        mention = await scene.slack.do("messages", channel=DEV, user=dana, text="fix it", mention=True)
        direct = await scene.slack.do("messages", user=dana, text="psst")
        await scene.slack.do("messages", channel=DEV, user=dana, text="just talk")
        events = {event.id: event for event in await scene.wait_for_events(2)}

        async def is_marked() -> bool:
            return len(await scene.slack.calls("reactions.add")) == 2

        await eventually(is_marked)
    assert events.keys() == {
        f"evt-slack-app_mention-{scene.channel}-{mention['ts']}",
        f"evt-slack-message-{direct['channel']}-{direct['ts']}",
    }
    first, second = (events[key] for key in sorted(events))
    assert (first.type, second.type) == ("slack.app_mention", "slack.channel.message")
    assert first.payload == {
        "text": "fix it",
        "user": dana,
        "channel": scene.channel,
        "ts": mention["ts"],
        "thread_ts": "",
    }
    assert first.priority is second.priority is Priority.NORMAL
    assert [entry.actor for entry in await scene.log("event.detected")] == ["envoy", "envoy"]


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_messages_in_two_channels_at_the_same_moment_are_two_events(scene: Scene) -> None:
    for channel in ("C1", "C2"):
        message = read_message({"type": "app_mention", "channel": channel, "user": "U1", "text": "go", "ts": "1.5"})
        assert message
        taken = [
            await run_transaction(scene.bus, partial(receive_message, message=message, now=scene.clock()))
            for _ in range(2)
        ]
        assert [each.is_new for each in taken] == [True, False]
    assert [event.payload["channel"] for event in await scene.events()] == ["C1", "C2"]


async def test_the_envoy_ignores_its_own_messages(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene)
        await scene.is_sent(await scene.update("more words"))
        await scene.slack.wait_until_nothing_is_pending()
        assert await scene.events() == []
        await scene.reply(question["thread_ts"], dana, "yes")
        assert len(await scene.wait_for_events()) == 1


async def test_messages_sent_while_no_one_listens_are_received_later(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene)
    await scene.reply(question["thread_ts"], dana, "yes")
    async with scene.envoy():
        [event] = await scene.wait_for_events()
    assert event.payload["text"] == "yes"


async def test_no_answer_is_lost_with_a_connection(scene: Scene, dana: str) -> None:
    async with scene.envoy():
        question = await asked(scene)
        await scene.slack.do("disconnects", reason="refresh_requested", grace_seconds=0.1)
        await scene.reply(question["thread_ts"], dana, "yes")
        [event] = await scene.wait_for_events()
    assert event.payload["text"] == "yes"
