from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kingdom.bus import Rejected, Throttled, Unknown
from kingdom.court.documents import Message, MessageStatus, MessageType, Urgency
from kingdom.court.envoy.slack_format import (
    ButtonChoice,
    classify_error,
    ended_question_blocks,
    escape_text,
    mention_people,
    plain_text,
    question_blocks,
    read_choice,
)

NOON = datetime(2026, 2, 7, 12, tzinfo=UTC)


def question(content: str = "Merge it?", **context: Any) -> Message:
    return Message(
        id="msg-20260207-001",
        type=MessageType.HUMAN_INPUT_REQUEST,
        channel="dev",
        urgency=Urgency.HIGH,
        content=content,
        context={"task_id": "task-20260207-001", "asked_at": NOON.isoformat(), **context},
        created_at=NOON,
        status=MessageStatus.PENDING,
    )


def buttons(message: Message) -> list[dict[str, Any]]:
    return [
        element
        for block in question_blocks(message, listens=True) or ()
        if block["type"] == "actions"
        for element in block["elements"]
    ]


def test_a_button_names_its_question_and_when_it_was_asked() -> None:
    [first, second] = buttons(question(choices=["approve", "reject"]))
    assert first["action_id"] != second["action_id"]
    assert read_choice(second["value"]) == ButtonChoice(
        question_id="task-20260207-001", asked_at="2026-02-07T12:00:00+00:00", choice="reject"
    )


def test_a_question_without_choices_has_no_buttons() -> None:
    assert buttons(question()) == []
    assert "Reply in this thread" in str(question_blocks(question(), listens=True))


def test_buttons_stay_within_the_limits_of_slack() -> None:
    choices = ["x" * 100, "y" * 3000, " ", *(f"choice {number}" for number in range(40))]
    made = buttons(question(choices=choices))
    assert len(made) == 25
    assert max(len(each["text"]["text"]) for each in made) == 75
    assert max(len(each["value"]) for each in made) <= 2000
    chosen = read_choice(made[0]["value"])
    assert chosen
    assert chosen.choice == "x" * 100


def test_a_long_question_is_split_into_parts_that_slack_accepts() -> None:
    sections = [block for block in ended_question_blocks("w" * 7000, "over") if block["type"] == "section"]
    assert "".join(block["text"]["text"] for block in sections) == "w" * 7000
    assert max(len(block["text"]["text"]) for block in sections) <= 3000


def test_a_truncated_question_cannot_be_answered_by_a_click() -> None:
    assert buttons(question("w" * 30_000, choices=["approve"]))
    for context, command in (({}, "kingdom inbox"), ({"ask_id": "task-1-9"}, "kingdom petition show task-1-9")):
        cut = question("w" * 30_001, choices=["approve"], **context)
        assert buttons(cut) == []
        assert command in str(question_blocks(cut, listens=True))
        assert "Click" not in str(question_blocks(cut, listens=True))


@pytest.mark.parametrize("context", [{}, {"choices": ["approve"]}, {"ask_id": "task-1-9", "choices": ["approve"]}])
def test_without_a_listener_people_are_sent_to_the_command_line(context: dict[str, Any]) -> None:
    blocks = question_blocks(question(**context), listens=False) or ()
    assert [block["type"] for block in blocks] == ["section", "context"]
    assert f"kingdom answer {context.get('ask_id', 'task-20260207-001')} TEXT" in str(blocks)
    assert "thread" not in str(blocks)
    assert "Click" not in str(blocks)
    assert ("approve" in str(blocks)) == ("choices" in context)


def test_only_questions_have_blocks() -> None:
    update = question()
    update = Message(**{**{name: getattr(update, name) for name in update.__struct_fields__}, "type": "notification"})
    assert question_blocks(update, listens=True) is None


@pytest.mark.parametrize("value", ["", "approve", "{}", '{"task_id": 1}', "[]"])
def test_a_button_of_another_app_is_ignored(value: str) -> None:
    assert read_choice(value) is None


def test_markup_in_a_text_is_escaped_and_a_long_text_is_cut() -> None:
    assert escape_text("<!here> & <https://x|y>") == "&lt;!here&gt; &amp; &lt;https://x|y&gt;"
    assert len(escape_text("x" * 50_000)) < 40_000
    assert len(escape_text("<" * 30_000)) < 40_000
    assert escape_text("<" * 30_000).endswith("&lt;…")


@pytest.mark.parametrize("shift", range(5))
def test_a_text_that_escaping_makes_too_long_loses_only_its_end(shift: int) -> None:
    assert len(escape_text("<" * 2_500 + "x" * 27_500)) == 36_001
    shown = escape_text("x" * shift + "<" * 29_000)
    assert len(shown) > 35_990
    assert set(shown[shift:-1].split(";")) == {"&lt", ""}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("<@U0APP> yes", "yes"),
        (" <@U0APP|kingdom>  <@U0APP> a &lt;b&gt; &amp; c ", "a <b> & c"),
        ("ask <@U0DANA>", "ask <@U0DANA>"),
        ("<@U0APP>", ""),
    ],
)
def test_an_answer_is_the_text_after_the_name_of_the_app(written: str, meant: str) -> None:
    assert plain_text(written) == meant


def test_only_user_ids_become_mentions() -> None:
    reply = mention_people("U02ABCDEF may not answer; allowed: W0123456789, UPPERCASE")
    assert reply == "<@U02ABCDEF> may not answer; allowed: <@W0123456789>, UPPERCASE"


def test_an_error_is_classified_by_whether_a_retry_can_help() -> None:
    soon = timedelta(seconds=7)
    assert classify_error("ratelimited", 429, soon, 1) == Throttled(soon, "Slack refused the message: ratelimited")
    assert isinstance(classify_error("", 429, None, 1), Throttled)
    assert isinstance(classify_error("internal_error", 200, None, 1), Unknown)
    assert isinstance(classify_error("", 502, None, 1), Unknown)
    assert isinstance(classify_error("", 0, None, 1), Unknown)
    hopeless = classify_error("channel_not_found", 200, None, 1)
    assert isinstance(hopeless, Rejected)
    assert "invite the app" in hopeless.reason


def test_an_unknown_refusal_is_tried_three_times() -> None:
    tries = [classify_error("strange_day", 200, None, attempt) for attempt in (1, 2, 3)]
    assert [type(each) for each in tries] == [Throttled, Throttled, Rejected]
    assert tries[0] == Throttled(None, "Slack refused the message: strange_day")
