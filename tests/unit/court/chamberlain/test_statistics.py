"""The statistics of the log."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import pytest

from kingdom.bus.log import LogEntry
from kingdom.court.chamberlain.statistics import DAYS_KEPT, HOURS_KEPT, Statistics
from tests.unit.court.chamberlain.entries import START, after, completed, created, failed

SEOUL = ZoneInfo("Asia/Seoul")
BERLIN = ZoneInfo("Europe/Berlin")


def folded(*entries: LogEntry, zone: ZoneInfo = SEOUL) -> Statistics:
    statistics = Statistics()
    for entry in entries:
        statistics.add(entry, zone)
    statistics.forget_old()
    return statistics


def test_events_are_counted_by_type_and_actor_per_hour_and_day() -> None:
    statistics = folded(
        completed(after(), "gen-pr"), completed(after(minutes=59), "gen-jira"), completed(after(hours=1), "gen-pr")
    )
    assert statistics.hours == {
        "2026-02-07T10Z": {"task.completed": {"gen-pr": 1, "gen-jira": 1}},
        "2026-02-07T11Z": {"task.completed": {"gen-pr": 1}},
    }
    assert statistics.days["2026-02-07"].counts == {"task.completed": {"gen-pr": 2, "gen-jira": 1}}
    assert statistics.days["2026-02-07"].count("task.completed") == 3


def test_the_last_hour_is_the_sixty_minutes_before_now_not_an_hour_of_the_clock() -> None:
    entries = [completed(after(minutes=minute), "gen-pr") for minute in (0, 30, 59, 61)]
    statistics = folded(*entries, failed(after(minutes=31), "gen-pr"))

    def last_hour(**later: float) -> dict[str, dict[str, int]]:
        statistics.sum_last_hour(after(**later))
        return statistics.last_hour

    assert last_hour(minutes=61) == {"task.completed": {"gen-pr": 3}, "task.failed": {"gen-pr": 1}}
    assert last_hour(minutes=90) == {"task.completed": {"gen-pr": 2}, "task.failed": {"gen-pr": 1}}
    assert last_hour(minutes=119) == {"task.completed": {"gen-pr": 1}}
    assert last_hour(minutes=121) == {}
    assert statistics.minutes == {}


def test_the_average_duration_of_each_general_is_known() -> None:
    day = folded(completed(START, "gen-pr", 100), completed(START, "gen-pr", 201), failed(START, "gen-pr")).day(
        START.date()
    )
    assert (day.durations["gen-pr"].count, day.durations["gen-pr"].average_seconds) == (2, 150)


def test_an_entry_that_is_not_an_internal_event_is_not_counted() -> None:
    assert folded(LogEntry(type="WorkStarted", actor="engine", at=START)) == Statistics()


def test_a_day_is_in_the_time_zone_of_the_court() -> None:
    statistics = folded(
        created(datetime(2026, 2, 7, 14, 59, 59, tzinfo=UTC)), created(datetime(2026, 2, 7, 15, tzinfo=UTC))
    )
    assert {day: sums.count("task.created") for day, sums in statistics.days.items()} == {
        "2026-02-07": 1,
        "2026-02-08": 1,
    }


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-07-01", 24), ("2026-10-25", 25)])
def test_a_day_on_which_clocks_are_changed_has_its_own_length(day: str, hours: int) -> None:
    start = datetime.fromisoformat(f"{day}T00:00:00").replace(tzinfo=BERLIN).astimezone(UTC)
    every_hour = [created(start + timedelta(hours=number)) for number in range(-1, 27)]
    assert folded(*every_hour, zone=BERLIN).days[day].count("task.created") == hours


def test_the_order_of_entries_does_not_matter() -> None:
    entries = [completed(after(minutes=number * 7), f"gen-{number % 3}", number) for number in range(30)]
    assert folded(*entries) == folded(*sorted(entries, key=lambda entry: entry.at, reverse=True))


def test_the_stored_statistics_stay_small_however_long_the_log_becomes() -> None:
    sizes = []
    statistics = Statistics()
    for day in range(400):
        for hour in range(24):
            statistics.add(completed(after(hours=24 * day + hour)), SEOUL)
        statistics.sum_last_hour(after(hours=24 * day + 23))
        statistics.forget_old()
        sizes.append(len(msgspec.json.encode(statistics)))
    assert (len(statistics.hours), len(statistics.days)) == (HOURS_KEPT, DAYS_KEPT)
    assert all(later <= earlier + 20 for earlier, later in pairwise(sizes[60:]))


def test_statistics_continue_after_a_restart() -> None:
    entries = [completed(after(minutes=number), "gen-pr", number) for number in range(10)]
    stored = msgspec.to_builtins(folded(*entries[:5]))
    statistics = msgspec.convert(stored, Statistics)
    for entry in entries[5:]:
        statistics.add(entry, SEOUL)
    assert statistics == folded(*entries)
