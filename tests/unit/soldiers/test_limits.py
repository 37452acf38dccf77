"""Usage limits are parsed from messages of vendors' programs; a looping agent is nudged once, then given up."""

from datetime import UTC, datetime, timedelta

import pytest

from kingdom.soldiers.agents.claude.usage_limit import limited_until, reset_at
from kingdom.soldiers.agents.limits import LoopAdvice, LoopDetector, parse_usage_limit

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def at(hour: int, minute: int = 0, *, day: int = 15, month: int = 11, year: int = 2026) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (f"Claude AI usage limit reached|{int(at(15).timestamp())}", at(15)),
        (f"API Error: Claude AI usage limit reached|{int(at(15).timestamp())}000 (429)", at(15)),
        # Seoul is nine hours ahead: it is 21:00 there.
        ("You've hit your limit · resets 11pm (Asia/Seoul)", at(14)),
        ("You've hit your session limit · resets 10:30pm (Asia/Seoul)\n/login to switch", at(13, 30)),
        ("5-hour limit reached ∙ resets 3am (Asia/Seoul)", at(18)),
        ("Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5).", at(18)),
        ("You've hit your limit for Claude messages. Limits will reset at 9:30 PM.", at(21, 30)),
        ("You've hit your weekly limit · resets Nov 17, 5pm (Europe/Berlin)", at(16, day=17)),
        ("weekly limit reached - resets Dec 1 at 12am (UTC)", at(0, day=1, month=12)),
        ("5-hour limit reached ∙ resets 12:15pm", at(12, 15)),
        ("You've hit your usage limit. Upgrade to Pro or try again in 2 hours 5 minutes.", at(14, 5)),
        ("You've hit your usage limit. Try again in 4 days 20 hours\n9 minutes.", at(8, 9, day=20)),
        ("You've hit your usage limit. Upgrade, or try again at Nov 20th, 2026 8:19 PM.", at(20, 19, day=20)),
        ("You've hit your usage limit ... or try again at Nov 20, 2026, 7:38 AM", at(7, 38, day=20)),
        ("You've hit your usage limit. Try again at 3:42 PM.", at(15, 42)),
        ('{"error":{"type":"usage_limit_reached","resets_in_seconds":7200}}', at(14)),
        (f'{{"type":"usage_limit_reached","resets_at":{int(at(16).timestamp())},"resets_in_seconds":9}}', at(16)),
        ("You have exhausted your capacity on this model. Your quota will reset after 4h28m20s.", at(16, 28)),
        ("Rate limit reached for model. Please try again in 1m26.4s.", at(12, 1)),
    ],
)
def test_the_time_is_parsed_from_the_output_of_a_program(text: str, until: datetime) -> None:
    found = parse_usage_limit(text, NOW)
    assert found is not None
    assert found.replace(second=0, microsecond=0) == until


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the build failed, try again in 2 hours",
        "Resource has been exhausted (e.g. check quota).",
        "You've hit your usage limit, or wait for limits to reset (every 5h and every week.).",
        "This request would exceed your account's rate limit. Please try again later.",
        "usage limit · resets 25:99 (Nowhere/Land)",
        "usage limit · resets 3pm (Nowhere/Land)",
        "usage limit · resets Feb 31, 3pm",
        "usage limit, try again in 3 months",
        "usage limit, try again in 400 days",
        "usage limit, try again in " + "9" * 300 + " days",
        "usage limit, try again in " + "999999 days " * 99,
        "the limit is 12 files, and the tests reset 3 of them",
    ],
)
def test_a_text_without_a_time_has_none(text: str) -> None:
    assert parse_usage_limit(text, NOW) is None


def test_a_time_of_day_that_has_just_passed_is_not_that_of_tomorrow() -> None:
    assert parse_usage_limit("limit reached, resets 11:55am", NOW) == NOW + timedelta(minutes=1)
    assert parse_usage_limit("limit reached, resets 11am", NOW) == at(11, day=16)


def test_a_date_in_january_read_in_december_is_in_the_next_year() -> None:
    eve = datetime(2026, 12, 30, 12, tzinfo=UTC)
    assert parse_usage_limit("weekly limit reached, resets Jan 2, 8am", eve) == at(8, day=2, month=1, year=2027)


def test_a_usage_limit_lasts_at_least_a_minute() -> None:
    assert parse_usage_limit("Your quota will reset after 0s.", NOW) == NOW + timedelta(minutes=1)


def test_a_usage_limit_of_claude_lasts_at_least_a_minute_and_at_most_a_month() -> None:
    message = "You have reached your specified API usage limits. You will regain access on {} at 00:00 UTC."
    soonest = NOW + timedelta(minutes=1)
    assert limited_until(message.format("2026-12-01"), NOW) == at(0, day=1, month=12)
    assert limited_until(message.format("2026-11-15"), NOW) == soonest
    assert limited_until(message.format("2027-11-15"), NOW) is None
    assert limited_until(message.format("2026-13-01"), NOW) is None
    assert reset_at(at(15).timestamp(), NOW) == at(15)
    assert reset_at(0, NOW) == soonest
    assert reset_at(10**20, NOW) is None


def test_a_looping_agent_is_warned_and_then_given_up() -> None:
    detector = LoopDetector(length=3)
    advice = [detector.record_call("Bash", "ls") for _ in range(6)]
    assert advice == [
        LoopAdvice.CONTINUE,
        LoopAdvice.CONTINUE,
        LoopAdvice.NUDGE,
        LoopAdvice.CONTINUE,
        LoopAdvice.CONTINUE,
        LoopAdvice.GIVE_UP,
    ]


def test_another_call_in_between_is_progress() -> None:
    detector = LoopDetector(length=3)
    calls = [("Bash", "ls"), ("Bash", "ls"), ("Bash", "ls src"), ("Read", "ls src"), ("Bash", "ls"), ("Bash", "ls")]
    assert {detector.record_call(*call) for call in calls} == {LoopAdvice.CONTINUE}


def test_calls_without_a_detail_are_not_repetitions() -> None:
    detector = LoopDetector(length=3)
    assert {detector.record_call("Bash", "") for _ in range(10)} == {LoopAdvice.CONTINUE}


def test_a_nudge_names_the_call_that_the_agent_repeated() -> None:
    detector = LoopDetector(length=2)
    detector.record_call("Bash", "x" * 500)
    detector.record_call("Bash", "x" * 500)
    assert detector.nudge.startswith(f"You called Bash 2 times in a row with the same input: {'x' * 200}…\n")
