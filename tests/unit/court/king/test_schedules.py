"""When a schedule fires: over changes of the clocks, and after an outage."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.king.schedules import due_times, next_schedule_time, schedule_times
from tests.unit.court.king.making import NOON, every

NEW_YORK = ZoneInfo("America/New_York")
LATE = timedelta(minutes=2)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def test_a_schedule_fires_once_at_a_time_that_the_clocks_repeat() -> None:
    # On this day 01:30 comes at 05:30 and again at 06:30 in UTC.
    found = list(islice(schedule_times("30 1 * * *", NEW_YORK, utc(2026, 10, 31, 12)), 2))
    assert found == [utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)]


def test_the_next_schedule_time_is_in_the_future_also_in_a_repeated_hour() -> None:
    for minutes in range(0, 120, 5):
        after = utc(2026, 11, 1, 5) + timedelta(minutes=minutes)
        found = next_schedule_time("30 1 * * *", NEW_YORK, after)
        assert found == (utc(2026, 11, 1, 5, 30) if minutes < 30 else utc(2026, 11, 2, 6, 30))


def test_a_time_that_the_clocks_skip_fires_at_the_end_of_the_hour() -> None:
    found = list(islice(schedule_times("30 2 * * *", NEW_YORK, utc(2026, 3, 7, 12)), 2))
    assert found == [utc(2026, 3, 8, 7), utc(2026, 3, 9, 6, 30)]


def test_a_schedule_of_every_hour_fires_in_each_real_hour() -> None:
    found = list(islice(schedule_times("0 * * * *", NEW_YORK, utc(2026, 11, 1, 4)), 4))
    assert found == [utc(2026, 11, 1, hour) for hour in (5, 6, 7, 8)]


@given(
    after=st.integers(0, 3 * 365 * 24 * 3600).map(lambda seconds: utc(2025, 1, 1) + timedelta(seconds=seconds)),
    cron=st.sampled_from(["30 1 * * *", "30 2 * * *", "*/20 * * * *", "0 9 * * 1-5", "15 1,2,3 * * 0", "0 0 1 * *"]),
)
def test_times_only_go_forward(after: datetime, cron: str) -> None:
    found = [after, *islice(schedule_times(cron, NEW_YORK, after), 5)]
    assert all(earlier < later for earlier, later in pairwise(found))


def due(catch_up: Any, first: datetime, now: datetime, cron: str = "0 * * * *") -> list[datetime]:
    return due_times(every(cron, catch_up=catch_up), NEW_YORK, first, now, LATE)


def test_a_time_that_has_just_come_fires_under_every_catch_up_rule() -> None:
    for catch_up in ("none", "once", "all"):
        assert due(catch_up, NOON, NOON + timedelta(seconds=9)) == [NOON]


def test_missed_schedule_times_fire_as_their_catch_up_rule_says() -> None:
    now = NOON + timedelta(hours=2, minutes=30)
    assert due("none", NOON, now) == []
    assert due("once", NOON, now) == [NOON + timedelta(hours=2)]
    assert due("all", NOON, now) == [NOON + timedelta(hours=hour) for hour in range(3)]


def test_after_a_long_absence_the_latest_time_is_found_and_not_all_fire_at_once() -> None:
    now = NOON + timedelta(days=300, seconds=30)
    assert due("once", NOON, now, "* * * * *") == [NOON + timedelta(days=300)]
    assert due("once", NOON, now, "0 12 1 1 *") == [utc(2027, 1, 1, 17)]
    assert len(due("all", NOON, now, "* * * * *")) == 100
