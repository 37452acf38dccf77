"""The messenger for Slack, without a store: sent messages are found again among many others."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kingdom.bus import Absent, Acked, Present, Throttled, Unclear
from kingdom.clock import utc_now
from kingdom.court.documents import Message, MessageStatus, MessageType, Urgency
from kingdom.court.envoy.messenger import OutgoingMessage
from kingdom.court.envoy.records import MessageThread
from kingdom.court.envoy.settings import SlackSettings
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.errors import Misconfigured
from tests.integration.court.envoy.scene import DEV, slack_settings
from tests.integration.standins.slack_scene import Scene as Slack
from tests.integration.standins.slack_scene import workspace


@pytest.fixture
async def slack(tmp_path: Path) -> AsyncIterator[Slack]:
    async with workspace(tmp_path / "slack.json") as slack:
        await slack.do("channels", name=DEV)
        yield slack


@pytest.fixture
async def place(slack: Slack) -> AsyncIterator[SlackMessenger]:
    place = SlackMessenger(slack_settings(slack.url), page=2)
    await place.open()
    yield place
    await place.close()


def post(key: str, *, channel: str = DEV, thread: MessageThread | None = None) -> OutgoingMessage:
    message = Message(
        id=f"msg-{key}",
        type=MessageType.NOTIFICATION,
        channel=channel,
        urgency=Urgency.NORMAL,
        content=key,
        context={},
        created_at=utc_now(),
        status=MessageStatus.PENDING,
    )
    return OutgoingMessage(message=message, channel=channel, thread=thread, key=key, identifier=f"{key}-1", attempt=1)


async def post_acked(place: SlackMessenger, some: OutgoingMessage) -> dict[str, str]:
    answer = await place.post(some)
    assert isinstance(answer, Acked)
    return dict(answer.response)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_message_is_found_among_many_others(place: SlackMessenger, *, in_thread: bool) -> None:
    root = await post_acked(place, post("root"))
    thread = MessageThread(channel=root["channel"], thread_ts=root["ts"], created_at=utc_now()) if in_thread else None
    mine = post("mine", thread=thread)
    assert await place.find(mine) == Absent()
    where = await post_acked(place, mine)
    for number in range(5):
        await place.web.chat_postMessage(channel=DEV, text="noise", thread_ts=root["ts"] if in_thread else None)
        await post_acked(place, post(f"other-{number}", thread=thread))
    assert await place.find(mine) == Present(where)
    assert await place.find(replace(mine, identifier="of a later attempt")) == Present(where)
    assert await place.find(post("never")) == Absent()


async def test_a_message_to_a_person_is_found(slack: Slack, place: SlackMessenger) -> None:
    dana = await slack.person("dana")
    mine = post("mine", channel=dana)
    where = await post_acked(place, mine)
    assert where["channel"].startswith("D")
    assert await place.find(mine) == Present(where)


async def test_a_lookup_in_a_channel_without_the_app_is_unclear(slack: Slack, place: SlackMessenger) -> None:
    await slack.do("channels", name="closed", with_app=False)
    assert isinstance(await place.find(post("mine", channel="closed")), Unclear)


async def test_a_post_to_an_unreachable_slack_is_retried_later_and_was_never_sent(
    slack: Slack, place: SlackMessenger
) -> None:
    away = SlackMessenger(slack_settings("http://127.0.0.1:9"))
    await away.open()
    try:
        assert isinstance(await away.post(post("mine")), Throttled)
    finally:
        await away.close()
    assert await slack.calls("chat.postMessage") == []
    assert await place.find(post("mine")) == Absent()


async def test_a_wrong_token_is_reported_at_once(slack: Slack) -> None:
    place = SlackMessenger(SlackSettings(bot_token="xoxb-wrong", base_url=f"{slack.url}/api/"))  # noqa: S106 - it is wrong
    with pytest.raises(Misconfigured, match=r"invalid_auth.*slack\.bot_token"):
        await place.open()
