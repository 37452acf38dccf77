from typing import Any

import pytest

from kingdom.court.envoy.receiving import PersonMessage, read_message

MESSAGE = {"type": "message", "channel": "C1", "user": "U1", "text": "hello", "ts": "1.5", "channel_type": "channel"}


def test_a_message_of_a_person_is_read() -> None:
    message = read_message({**MESSAGE, "thread_ts": "1.0"})
    assert message == PersonMessage(kind="message", channel="C1", user="U1", text="hello", ts="1.5", thread_ts="1.0")


def test_a_mention_and_a_direct_message_are_distinguished() -> None:
    mention, direct = read_message({**MESSAGE, "type": "app_mention"}), read_message({**MESSAGE, "channel_type": "im"})
    assert mention
    assert direct
    assert (mention.kind, mention.direct) == ("app_mention", False)
    assert (direct.kind, direct.direct) == ("message", True)


@pytest.mark.parametrize("more", [{"subtype": "file_share"}, {"subtype": "thread_broadcast"}])
def test_a_text_with_a_file_is_a_message(more: dict[str, Any]) -> None:
    assert read_message({**MESSAGE, **more})


@pytest.mark.parametrize(
    "more",
    [{"bot_id": "B1"}, {"subtype": "message_changed"}, {"subtype": "channel_join"}, {"user": None}, {"ts": ""}],
)
def test_a_message_without_a_person_is_skipped(more: dict[str, Any]) -> None:
    assert read_message({**MESSAGE, **more}) is None
