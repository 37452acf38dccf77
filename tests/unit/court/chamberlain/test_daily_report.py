"""The daily report: its document, its text, and the days it is due for."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from kingdom.court.chamberlain.daily_report import days_to_report, report_of, report_text
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.chamberlain.statistics import DayStatistics, Statistics
from tests.unit.court.chamberlain.entries import START, completed, created, failed, needs_human, spawned, timed_out

SEOUL = ZoneInfo("Asia/Seoul")
SETTINGS = ChamberlainSettings()
SEVENTH = date(2026, 2, 7)


def of_a_day() -> DayStatistics:
    statistics = Statistics()
    entries = [created(START)] * 15 + [completed(START, "gen-pr", 420)] * 11 + [completed(START, "gen-briefing", 60)]
    entries += [failed(START)] * 2 + [needs_human(START)] + [spawned(START)] * 14 + [timed_out(START)]
    for entry in entries:
        statistics.add(entry, SEOUL)
    return statistics.day(SEVENTH)


def test_the_document_has_the_documented_shape() -> None:
    assert msgspec.to_builtins(report_of(SEVENTH, of_a_day())) == {
        "type": "daily_report",
        "date": "2026-02-07",
        "tasks": {"created": 15, "completed": 12, "failed": 2, "needs_human": 1},
        "soldiers": {"spawned": 14, "timeout": 1},
        "avg_duration_seconds": {"gen-briefing": 60, "gen-pr": 420},
    }


def test_the_text_says_the_same_to_people() -> None:
    assert report_text(report_of(SEVENTH, of_a_day())) == (
        "Daily report for 2026-02-07\n"
        "Assignments: 15 created, 12 completed, 2 failed, 1 needed a person\n"
        "Soldiers: 14 started, 1 exceeded their time limit\n"
        "Average duration: gen-briefing 1 min, gen-pr 7 min"
    )


def test_a_day_without_anything_is_reported_too() -> None:
    assert report_text(report_of(SEVENTH, DayStatistics())).endswith("Soldiers: 0 started, 0 exceeded their time limit")


@pytest.mark.parametrize(
    ("now", "last", "days"),
    [
        pytest.param("2026-02-08T08:59:59", "2026-02-06", [], id="one second before nine"),
        pytest.param("2026-02-08T09:00:00", "2026-02-06", [7], id="at nine"),
        pytest.param("2026-02-08T23:00:00", "2026-02-07", [], id="told already"),
        pytest.param("2026-02-11T08:00:00", "2026-02-06", [7, 8, 9], id="no Chamberlain ran for days"),
        pytest.param("2026-02-11T10:00:00", None, [7, 8, 9, 10], id="no report yet, so from the first day on"),
        pytest.param("2026-02-20T10:00:00", "2026-02-08", [13, 14, 15, 16, 17, 18, 19], id="a week back at most"),
        pytest.param("2026-02-05T10:00:00", "2026-02-07", [], id="a clock that was set back"),
    ],
)
def test_a_day_is_reported_from_nine_on_the_next_morning(now: str, last: str | None, days: list[int]) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=SEOUL).astimezone(UTC)
    last_day = date.fromisoformat(last) if last else None
    due = days_to_report(moment, SEOUL, SETTINGS, SEVENTH, last_day)
    assert due == [date(2026, 2, day) for day in days]


def test_a_court_without_activity_reports_nothing() -> None:
    assert days_to_report(START, SEOUL, SETTINGS, None, None) == []


def test_nine_in_the_morning_is_local_also_when_clocks_are_changed() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = date(2026, 3, 28)
    before, at = datetime(2026, 3, 29, 6, 59, 59, tzinfo=UTC), datetime(2026, 3, 29, 7, tzinfo=UTC)
    assert days_to_report(before, berlin, SETTINGS, first, None) == []
    assert days_to_report(at, berlin, SETTINGS, first, None) == [first]
