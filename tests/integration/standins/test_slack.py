"""The Slack stand-in by the official Web API client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_async_handlers import AsyncRateLimitErrorRetryHandler
from slack_sdk.models.metadata import Metadata

from kingdom.standins.slack import chat
from tests.integration.standins.slack_scene import APP_TOKEN, BOT_TOKEN, Scene, program, workspace


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with workspace(tmp_path / "slack.json") as scene:
        await scene.do("channels", name="dev")
        yield scene


async def refusal(call: Any) -> str:
    with pytest.raises(SlackApiError) as refused:
        await call
    assert refused.value.response.status_code == 200
    return str(refused.value.response["error"])


async def test_a_reply_in_a_thread_is_found_again_by_its_metadata(scene: Scene) -> None:
    client = scene.client()
    parent = await client.chat_postMessage(channel="#dev", text="Shall I?")
    metadata = Metadata(event_type="ask", event_payload={"ask_id": "ask-1"})
    reply = await client.chat_postMessage(
        channel=parent["channel"], thread_ts=parent["ts"], text="Still waiting", metadata=metadata
    )

    thread = await client.conversations_replies(channel=parent["channel"], ts=parent["ts"], include_all_metadata=True)
    without = await client.conversations_replies(channel=parent["channel"], ts=parent["ts"])

    first, second = thread["messages"]
    assert (first["ts"], first["reply_count"], first["latest_reply"]) == (parent["ts"], 1, reply["ts"])
    assert second["metadata"] == {"event_type": "ask", "event_payload": {"ask_id": "ask-1"}}
    assert (second["thread_ts"], reply["ts"] > parent["ts"]) == (parent["ts"], True)
    assert "metadata" not in without["messages"][1]
    reported = (await scene.calls("chat.postMessage"))[1]
    assert (reported["text"], reported["thread_ts"], reported["metadata"]) == (
        "Still waiting",
        parent["ts"],
        second["metadata"],
    )


async def test_a_message_to_a_person_goes_to_their_direct_channel_and_shows_its_id(scene: Scene) -> None:
    dana = await scene.person("dana")
    client = scene.client()

    sent = await client.chat_postMessage(channel=dana, text="Hello")
    opened = await client.conversations_open(users=dana)
    shown = await client.conversations_info(channel=sent["channel"])

    assert sent["channel"].startswith("D")
    assert opened["channel"]["id"] == sent["channel"]
    assert (shown["channel"]["is_im"], shown["channel"]["user"]) == (True, dana)


async def test_form_bodies_are_accepted_like_json_bodies(scene: Scene) -> None:
    client = scene.client()
    blocks = '[{"type": "section", "text": {"type": "mrkdwn", "text": "*Hi*"}}]'

    sent = await client.api_call("chat.postMessage", data={"channel": "dev", "text": "Hi", "blocks": blocks})

    assert sent["message"]["blocks"][0]["text"]["text"] == "*Hi*"


async def test_a_refused_call_gets_the_error_code_of_slack_and_is_not_recorded(scene: Scene) -> None:
    client = scene.client()
    hidden = await scene.do("channels", name="hidden", private=True, with_app=False)
    foreign = await scene.do("channels", name="foreign", with_app=False)
    long_button = {"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "x" * 76}}
    actions = {"type": "actions", "elements": [long_button]}

    for error, asked in {
        "channel_not_found": {"channel": "C404", "text": "Hi"},
        "not_in_channel": {"channel": foreign["id"], "text": "Hi"},
        "no_text": {"channel": "dev"},
        "thread_not_found": {"channel": "dev", "text": "Hi", "thread_ts": "1.000001"},
        "invalid_metadata_format": {"channel": "dev", "text": "Hi", "metadata": {"ask": "1"}},
        "invalid_blocks": {"channel": "dev", "text": "Hi", "blocks": [actions]},
    }.items():
        assert await refusal(client.api_call("chat.postMessage", json=asked)) == error
    assert await refusal(client.chat_postMessage(channel=hidden["id"], text="Hi")) == "channel_not_found"
    assert await refusal(client.chat_update(channel=foreign["id"], ts="1.1", text="Hi")) == "not_in_channel"
    assert await refusal(client.api_call("chat.shout")) == "unknown_method"
    assert await scene.look("calls") == []


async def test_a_method_accepts_only_the_right_token(scene: Scene) -> None:
    assert await refusal(scene.client(token=None).auth_test()) == "not_authed"
    assert await refusal(scene.client(token=f"{BOT_TOKEN}-wrong").auth_test()) == "invalid_auth"
    assert await refusal(scene.client(token=APP_TOKEN).auth_test()) == "not_allowed_token_type"

    who = await scene.client().auth_test()
    socket = await scene.client().apps_connections_open(app_token=APP_TOKEN)

    assert who["user_id"] == (await scene.look("state"))["app"]["user_id"]
    assert socket["url"].startswith("ws://127.0.0.1:")


async def test_a_changed_message_keeps_its_place_and_loses_blocks_that_are_not_given_again(scene: Scene) -> None:
    client = scene.client()
    dana = await scene.person("dana", in_channel="dev")
    blocks = [{"type": "section", "text": {"type": "plain_text", "text": "Open"}}]
    sent = await client.chat_postMessage(channel="dev", text="Open", blocks=blocks)
    theirs = await scene.do("messages", channel="dev", user=dana, text="Mine")

    await client.chat_update(channel=sent["channel"], ts=sent["ts"], text="Closed")

    newest, changed = (await client.conversations_history(channel=sent["channel"]))["messages"]
    assert (changed["ts"], changed["text"], "blocks" in changed) == (sent["ts"], "Closed", False)
    assert newest["ts"] == theirs["ts"]
    foreign = client.chat_update(channel=sent["channel"], ts=theirs["ts"], text="Ours")
    assert await refusal(foreign) == "cant_update_message"
    missing = client.chat_update(channel=sent["channel"], ts="1.000001", text="Where?")
    assert await refusal(missing) == "message_not_found"


async def test_an_ephemeral_message_is_in_no_history(scene: Scene) -> None:
    dana = await scene.person("dana", in_channel="dev")
    client = scene.client()
    channel = (await client.conversations_list())["channels"][0]["id"]

    await client.chat_postEphemeral(channel=channel, user=dana, text="Psst")

    assert (await client.conversations_history(channel=channel))["messages"] == []
    assert [seen["text"] for seen in (await scene.look("state"))["ephemerals"]] == ["Psst"]
    stranger = await scene.person("eve")
    unseen = client.chat_postEphemeral(channel=channel, user=stranger, text="Psst")
    assert await refusal(unseen) == "user_not_in_channel"


async def test_a_reaction_is_given_once_and_taken_back_once(scene: Scene) -> None:
    client = scene.client()
    sent = await client.chat_postMessage(channel="dev", text="Done?")
    where = {"channel": sent["channel"], "timestamp": sent["ts"]}

    await client.reactions_add(name="eyes", **where)
    assert await refusal(client.reactions_add(name="eyes", **where)) == "already_reacted"
    reactions = (await client.reactions_get(**where))["message"]["reactions"]
    await client.reactions_remove(name="eyes", **where)
    assert await refusal(client.reactions_remove(name="eyes", **where)) == "no_reaction"

    assert [(reaction["name"], reaction["count"]) for reaction in reactions] == [("eyes", 1)]
    assert len(await scene.calls("reactions.add")) == 1
    assert "reactions" not in (await client.reactions_get(**where))["message"]


async def test_a_history_is_read_page_by_page_from_the_newest(scene: Scene) -> None:
    client = scene.client()
    sent = [await client.chat_postMessage(channel="dev", text=str(number)) for number in range(5)]
    channel = sent[0]["channel"]

    pages = [
        [message["text"] for message in page["messages"]]
        async for page in await client.conversations_history(channel=channel, limit=2)
    ]
    between = {"oldest": sent[1]["ts"], "latest": sent[3]["ts"]}
    exclusive = await client.conversations_history(channel=channel, **between)
    inclusive = await client.conversations_history(channel=channel, inclusive=True, **between)

    assert pages == [["4", "3"], ["2", "1"], ["0"]]
    assert [message["text"] for message in exclusive["messages"]] == ["2"]
    assert [message["text"] for message in inclusive["messages"]] == ["3", "2", "1"]
    assert exclusive["has_more"] is False
    wrong = client.conversations_history(channel=channel, cursor="nonsense")
    assert await refusal(wrong) == "invalid_cursor"


async def test_a_long_thread_is_read_page_by_page_from_its_beginning(scene: Scene) -> None:
    client = scene.client()
    parent = await client.chat_postMessage(channel="dev", text="parent")
    for number in range(3):
        await client.chat_postMessage(channel="dev", text=str(number), thread_ts=parent["ts"])

    pages = [
        [message["text"] for message in page["messages"]]
        async for page in await client.conversations_replies(channel=parent["channel"], ts=parent["ts"], limit=2)
    ]

    assert pages == [["parent", "0"], ["1", "2"]]
    assert len((await client.conversations_history(channel=parent["channel"]))["messages"]) == 1


async def test_people_and_channels_can_be_looked_up(scene: Scene) -> None:
    dana = await scene.person("dana", in_channel="dev")
    await scene.do("channels", name="secret", private=True)
    client = scene.client()

    names = [user["name"] async for page in await client.users_list(limit=1) for user in page["members"]]
    channels = await client.conversations_list(types="public_channel,private_channel")

    assert names == ["kingdom", "dana"]
    assert (await client.users_info(user=dana))["user"]["real_name"] == "Dana"
    assert [channel["name"] for channel in channels["channels"]] == ["dev", "secret"]
    assert await refusal(client.users_info(user="U404")) == "user_not_found"


async def test_the_client_recognizes_a_rate_limit(scene: Scene) -> None:
    await scene.trouble(kind="refuse", path="/api/chat.postMessage", status=429, retry_after=7)

    with pytest.raises(SlackApiError) as refused:
        await scene.client().chat_postMessage(channel="dev", text="Hi")

    assert (refused.value.response.status_code, refused.value.response["error"]) == (429, "ratelimited")
    assert refused.value.response.headers["Retry-After"] == "7"
    assert await scene.calls("chat.postMessage") == []


async def test_a_channel_takes_one_message_a_second_when_slack_is_strict(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WhenRefused(AsyncRateLimitErrorRetryHandler):
        async def prepare_for_next_attempt_async(self, **about: Any) -> None:
            monkeypatch.setattr(chat, "_SECONDS_PER_MESSAGE", 0)
            await super().prepare_for_next_attempt_async(**about)

    assert chat._SECONDS_PER_MESSAGE == 1
    monkeypatch.setattr(chat, "_SECONDS_PER_MESSAGE", 3600)
    await scene.do("settings", rate_limit=True)
    await scene.do("channels", name="ops")
    hasty = scene.client()
    patient = scene.client(retry_handlers=[WhenRefused(max_retry_count=1)])

    posts = [hasty.chat_postMessage(channel="dev", text=str(number)) for number in range(5)]
    answers = await asyncio.gather(*posts, return_exceptions=True)
    await hasty.chat_postMessage(channel="ops", text="elsewhere")
    await patient.chat_postMessage(channel="dev", text="later")

    limited = [answer.response for answer in answers if isinstance(answer, SlackApiError)]
    posted = await scene.calls("chat.postMessage")
    assert {(answer.status_code, answer["error"]) for answer in limited} == {(429, "ratelimited")}
    assert {answer.headers["Retry-After"] for answer in limited} == {"1"}
    assert (len(limited), len(posted)) == (4, 3)
    assert posted[-1]["text"] == "later"


async def test_a_call_whose_answer_is_lost_was_carried_out_once(scene: Scene) -> None:
    await scene.trouble(kind="lose_answer", path="/api/chat.postMessage")
    client = scene.client()

    with pytest.raises(aiohttp.ClientError):
        await client.chat_postMessage(channel="dev", text="Hi", metadata={"event_type": "e", "event_payload": {}})

    (done,) = await scene.calls("chat.postMessage")
    found = await client.conversations_history(channel=done["channel"], include_all_metadata=True)
    assert [message["metadata"]["event_type"] for message in found["messages"]] == ["e"]


async def test_a_killed_workspace_continues_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "slack.json"
    async with program(state) as (scene, process):
        await scene.do("channels", name="dev")
        before = await scene.client().chat_postMessage(channel="dev", text="before")
        process.kill()
        await process.wait()
    async with program(state) as (scene, _):
        after = await scene.client().chat_postMessage(channel="dev", text="after")
        history = await scene.client().conversations_history(channel=before["channel"])

        assert [message["text"] for message in history["messages"]] == ["after", "before"]
        assert after["ts"] > before["ts"]
        assert len(await scene.calls("chat.postMessage")) == 2
