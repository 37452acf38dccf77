"""The Slack stand-in by Bolt and the official Socket Mode client: events, clicks, lost connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.context.ack.async_ack import AsyncAck
from slack_bolt.context.respond.async_respond import AsyncRespond
from slack_bolt.context.say.async_say import AsyncSay
from slack_sdk.webhook.async_client import AsyncWebhookClient

from tests.integration.running import eventually
from tests.integration.standins.slack_scene import Scene, bolt, listening, program, workspace
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with workspace(tmp_path / "slack.json") as scene:
        await scene.do("channels", name="dev")
        # Slack repeats an event that is not acknowledged in time: a slow machine must not cause repetitions.
        await scene.do("settings", ack_seconds=PATIENCE_SECONDS)
        yield scene


@pytest.fixture
async def dana(scene: Scene) -> str:
    return await scene.person("dana", in_channel="dev")


async def ask(scene: Scene, thread_ts: str | None = None) -> dict[str, Any]:
    """Post a question with two buttons as the app."""
    buttons = [
        {"type": "button", "action_id": action, "value": f"{action}-1", "text": {"type": "plain_text", "text": action}}
        for action in ("approve", "reject")
    ]
    blocks = [{"type": "actions", "block_id": "ask", "elements": buttons}]
    asked = await scene.client().chat_postMessage(channel="dev", text="Merge?", blocks=blocks, thread_ts=thread_ts)
    return dict(asked.data)  # type: ignore[arg-type]


async def texts(scene: Scene, channel: str, ts: str) -> list[str]:
    thread = await scene.client().conversations_replies(channel=channel, ts=ts)
    return [message["text"] for message in thread["messages"]]


async def test_a_reply_in_a_thread_is_received_and_answered_there(scene: Scene, dana: str) -> None:
    app = AsyncApp(client=scene.client())

    @app.event("message")
    async def answer(event: dict[str, Any], say: AsyncSay) -> None:
        await say(text=f"Heard: {event['text']}", thread_ts=event["thread_ts"])

    asked = await scene.client().chat_postMessage(channel="dev", text="Which branch?")
    async with bolt(scene, app):
        await scene.do("messages", channel="dev", user=dana, text="main", thread_ts=asked["ts"])

        async def is_answered() -> bool:
            return len(await texts(scene, asked["channel"], asked["ts"])) == 3

        await eventually(is_answered)

    assert await texts(scene, asked["channel"], asked["ts"]) == ["Which branch?", "main", "Heard: main"]


async def test_a_mention_and_a_direct_message_reach_the_app(scene: Scene, dana: str) -> None:
    app = AsyncApp(client=scene.client())
    received: list[dict[str, Any]] = []

    @app.event("app_mention")
    @app.event("message")
    async def note(body: dict[str, Any]) -> None:
        received.append(body)

    async with bolt(scene, app):
        mention = await scene.do("messages", channel="dev", user=dana, text="fix it", mention=True)
        direct = await scene.do("messages", user=dana, text="psst")

        async def is_heard() -> bool:
            return len(received) >= 3

        await eventually(is_heard)

    by_kind = {(body["event"]["type"], body["event"].get("channel_type")): body for body in received}
    assert by_kind.keys() == {("message", "channel"), ("app_mention", None), ("message", "im")}
    assert by_kind["app_mention", None]["event"]["ts"] == mention["ts"]
    assert by_kind["message", "im"]["event"]["channel"] == direct["channel"]
    assert len({body["event_id"] for body in received}) == 3
    assert {body["authorizations"][0]["is_bot"] for body in received} == {True}


async def test_a_click_is_acknowledged_and_the_question_replaced(scene: Scene, dana: str) -> None:
    app = AsyncApp(client=scene.client())
    clicks: list[dict[str, Any]] = []

    @app.action("approve")
    async def approve(ack: AsyncAck, body: dict[str, Any], respond: AsyncRespond) -> None:
        await ack()
        clicks.append(body)
        await respond(text=f"Approved by <@{body['user']['id']}>", replace_original=True)

    parent = await scene.client().chat_postMessage(channel="dev", text="Work")
    asked = await ask(scene, thread_ts=parent["ts"])
    async with bolt(scene, app):
        seen = await scene.do("clicks", channel="dev", ts=asked["ts"], user=dana, action_id="approve")

        async def is_replaced() -> bool:
            return "Approved" in (await texts(scene, asked["channel"], parent["ts"]))[1]

        await eventually(is_replaced)

    (click,) = clicks
    action = click["actions"][0]
    assert seen["acknowledged"] is True
    assert (action["action_id"], action["block_id"], action["value"]) == ("approve", "ask", "approve-1")
    assert (click["message"]["ts"], click["container"]["thread_ts"]) == (asked["ts"], parent["ts"])
    thread = await scene.client().conversations_replies(channel=asked["channel"], ts=parent["ts"])
    assert "blocks" not in thread["messages"][1]
    assert len(await scene.calls("response_url")) == 1


async def test_a_click_can_be_answered_in_each_format_five_times(scene: Scene, dana: str) -> None:
    asked = await ask(scene)
    async with listening(scene):
        seen = await scene.do("clicks", channel="dev", ts=asked["ts"], user=dana, action_id="approve")
        answer = AsyncWebhookClient(seen["response_url"])
        await answer.send(text="For you alone")
        await answer.send(text="For all", response_type="in_channel")
        await answer.send_dict({"text": "In the thread", "response_type": "in_channel", "thread_ts": asked["ts"]})
        await answer.send(delete_original=True)
        gone = await answer.send(text="Too late", replace_original=True)
        last = await answer.send(text="Again")
        too_many = await answer.send(text="And again")

    history = await scene.client().conversations_history(channel=asked["channel"])
    assert [message["text"] for message in history["messages"]] == ["For all"]
    assert [each["text"] for each in (await scene.look("state"))["ephemerals"]] == ["For you alone", "Again"]
    assert (gone.status_code, "message_not_found" in gone.body) == (404, True)
    assert (last.status_code, too_many.status_code, "used_url" in too_many.body) == (200, 404, True)
    assert len(await scene.calls("response_url")) == 5


async def test_a_click_without_an_acknowledgement_counts_as_failed_and_is_not_repeated(scene: Scene, dana: str) -> None:
    asked = await ask(scene)
    await scene.do("settings", ack_seconds=0.2)
    click = {"channel": "dev", "ts": asked["ts"], "user": dana, "action_id": "reject"}

    assert (await scene.do("clicks", **click))["acknowledged"] is False
    async with listening(scene) as listener:
        await scene.do("settings", ack_seconds=PATIENCE_SECONDS)
        assert (await scene.do("clicks", **click))["acknowledged"] is True

    assert [request.type for request in listener.received].count("interactive") == 1


async def test_an_unacknowledged_event_is_sent_again(scene: Scene, dana: str) -> None:
    await scene.do("settings", ack_seconds=0.2, retries=1000)
    async with listening(scene, acknowledges=False) as deaf:
        await scene.do("messages", channel="dev", user=dana, text="Anybody?")
        first, second, *_ = await deaf.wait_for(2)
    async with listening(scene) as listener:
        await listener.wait_for(1)
        await scene.wait_until_nothing_is_pending()

    assert first.payload["event_id"] == second.payload["event_id"] == listener.received[0].payload["event_id"]
    assert first.envelope_id != second.envelope_id
    assert (first.retry_attempt, second.retry_attempt, second.retry_reason) == (0, 1, "timeout")


async def test_an_event_whose_connection_is_lost_is_sent_to_the_next_connection_at_once(
    scene: Scene, dana: str
) -> None:
    await scene.do("settings", ack_seconds=3600)
    async with listening(scene, acknowledges=False) as deaf:
        await scene.do("messages", channel="dev", user=dana, text="Anybody?")
        await deaf.wait_for(1)
    async with listening(scene) as listener:
        await scene.wait_until_nothing_is_pending()

    assert listener.texts() == ["Anybody?"]


async def test_slack_gives_up_on_an_app_that_stays_silent(scene: Scene, dana: str) -> None:
    await scene.do("settings", ack_seconds=0.1, retries=2)
    async with listening(scene, acknowledges=False) as deaf:
        await scene.do("messages", channel="dev", user=dana, text="Anybody?")
        await scene.wait_until_nothing_is_pending()
        await deaf.wait_for(3)

    assert deaf.texts() == ["Anybody?"] * 3
    dropped = (await scene.look("state"))["dropped"]
    assert [payload["event"]["text"] for payload in dropped] == ["Anybody?"]


async def test_a_click_whose_connection_is_lost_is_not_repeated(scene: Scene, dana: str) -> None:
    asked = await ask(scene)
    async with listening(scene):
        await scene.wait_until_nothing_is_pending()
    async with listening(scene, acknowledges=False) as deaf:
        await scene.do("settings", ack_seconds=3600)
        click = scene.do("clicks", channel="dev", ts=asked["ts"], user=dana, action_id="reject")
        clicking = asyncio.create_task(click)
        await deaf.wait_for(1)
        await scene.do("disconnects")
        await scene.do("messages", channel="dev", user=dana, text="Did it work?")
        await deaf.wait_for(2)
        assert not clicking.done()
        clicking.cancel()

    assert [request.type for request in deaf.received].count("interactive") == 1


async def test_only_one_of_two_connections_gets_an_envelope(scene: Scene, dana: str) -> None:
    async with listening(scene) as one, listening(scene, connections=2) as other:
        for number in range(4):
            await scene.do("messages", channel="dev", user=dana, text=str(number))
        await scene.wait_until_nothing_is_pending()

    assert sorted(one.texts() + other.texts()) == ["0", "1", "2", "3"]
    assert len(one.received) == len(other.received) == 2


async def test_messages_sent_while_the_envoy_is_away_are_received_later_in_order(scene: Scene, dana: str) -> None:
    for text in ("one", "two"):
        await scene.do("messages", channel="dev", user=dana, text=text)

    async with listening(scene) as listener:
        await scene.wait_until_nothing_is_pending()

    assert listener.texts() == ["one", "two"]


async def test_a_client_that_must_reconnect_receives_every_message(scene: Scene, dana: str) -> None:
    async with listening(scene, ping_seconds=0.2) as listener:
        for reason in ("refresh_requested", "warning", None):
            await scene.wait_until_connected()
            assert await scene.do("disconnects", reason=reason) == {"disconnected": 1}
            await scene.do("messages", channel="dev", user=dana, text=str(reason))
            await scene.wait_until_nothing_is_pending()

    assert list(dict.fromkeys(listener.texts())) == ["refresh_requested", "warning", "None"]


async def test_events_can_come_twice_and_in_the_wrong_order(scene: Scene, dana: str) -> None:
    async with listening(scene) as listener:
        await scene.trouble(kind="repeat", method="PUSH", path="message")
        await scene.do("messages", channel="dev", user=dana, text="twice")
        await listener.wait_for(2)
        await scene.trouble(kind="reorder", method="PUSH", path="message")
        await scene.do("messages", channel="dev", user=dana, text="late")
        await scene.do("messages", channel="dev", user=dana, text="early")
        await listener.wait_for(4)

    assert listener.texts() == ["twice", "twice", "early", "late"]
    assert len({request.payload["event_id"] for request in listener.received}) == 3
    assert len({request.envelope_id for request in listener.received}) == 4


async def test_the_app_receives_its_own_messages_and_changes(scene: Scene, dana: str) -> None:
    async with listening(scene) as listener:
        sent = await scene.client().chat_postMessage(channel="dev", text="Open")
        await scene.client().chat_update(channel=sent["channel"], ts=sent["ts"], text="Closed")
        own, changed = [request.payload["event"] for request in await listener.wait_for(2)]

    assert own["bot_id"] == (await scene.look("state"))["app"]["bot_id"]
    assert (changed["subtype"], changed["message"]["text"]) == ("message_changed", "Closed")
    assert changed["previous_message"]["text"] == "Open"
    await scene.do("members", channel="dev", user=(await scene.look("state"))["app"]["user_id"], leaves=True)
    await scene.do("messages", channel="dev", user=dana, text="unheard")
    assert (await scene.look("state"))["pending"] == []


async def test_a_restarted_workspace_delivers_the_pending_events(tmp_path: Path) -> None:
    state = tmp_path / "slack.json"
    async with program(state) as (scene, process):
        await scene.do("settings", ack_seconds=PATIENCE_SECONDS)
        await scene.do("channels", name="dev")
        dana = await scene.person("dana", in_channel="dev")
        await scene.do("messages", channel="dev", user=dana, text="before")
        async with listening(scene, acknowledges=False) as deaf:
            await deaf.wait_for(1)
            process.kill()
            await process.wait()
    async with program(state) as (scene, _), listening(scene) as listener:
        await scene.wait_until_nothing_is_pending()

    assert listener.texts() == ["before"]
    assert listener.received[0].payload["event_id"] == deaf.received[0].payload["event_id"]
    assert listener.received[0].retry_attempt


async def test_a_client_finds_a_killed_workspace_again(tmp_path: Path) -> None:
    state = tmp_path / "slack.json"
    async with program(state) as (scene, process):
        dana = await scene.person("dana")
        async with listening(scene, ping_seconds=0.2) as listener:
            process.kill()
            await process.wait()
            async with program(state, port=urlsplit(scene.url).port or 0) as (again, _):
                await again.do("messages", user=dana, text="Back?")
                await listener.wait_for(1)

    assert listener.texts()[0] == "Back?"


async def test_a_click_can_be_delivered_twice(scene: Scene, dana: str) -> None:
    asked = await ask(scene)
    await scene.trouble(kind="repeat", method="PUSH", path="block_actions")

    async with listening(scene) as listener:
        click = scene.do("clicks", channel="dev", ts=asked["ts"], user=dana, action_id="approve")
        assert (await asyncio.wait_for(click, PATIENCE_SECONDS))["acknowledged"] is True
        await scene.wait_until_nothing_is_pending()

    clicks = [request.payload for request in listener.received if request.type == "interactive"]
    assert len(clicks) == 2
    assert clicks[0]["actions"] == clicks[1]["actions"]
