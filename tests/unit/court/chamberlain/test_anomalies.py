"""Which patterns in the log alert people, and for how long the same alert is not repeated."""

from datetime import datetime, timedelta

import msgspec
import pytest

from kingdom.bus.log import LogEntry
from kingdom.court.chamberlain.anomalies import Alert, AnomalyState
from kingdom.court.chamberlain.settings import AnomalySettings
from tests.unit.court.chamberlain.entries import (
    START,
    after,
    completed,
    detected,
    discarded,
    dispatched,
    failed,
    timed_out,
)

SETTINGS = AnomalySettings()
LATER = timedelta(seconds=30)


def watched(
    *entries: LogEntry, watch: AnomalyState | None = None, now: datetime | None = None
) -> tuple[AnomalyState, list[Alert]]:
    """Observe entries at `now`, or 30 seconds after the last one, with a state that was stored and loaded before."""
    watch = msgspec.convert(msgspec.to_builtins(watch or AnomalyState()), AnomalyState)
    now = now or max(entry.at for entry in entries) + LATER
    for entry in entries:
        watch.observe(entry, now)
    return watch, watch.detect(now, SETTINGS)


def keys(alerts: list[Alert]) -> list[str]:
    return [alert.key for alert in alerts]


def test_the_third_failure_in_a_row_is_reported() -> None:
    watch, alerts = watched(failed(after(minutes=1)), failed(after(minutes=2)))
    assert alerts == []
    _, alerts = watched(failed(after(minutes=90)), watch=watch)
    assert alerts == [Alert(key="failures:gen-pr", text="gen-pr failed 3 times in a row.")]


def test_a_success_ends_a_series_of_failures() -> None:
    _, alerts = watched(
        failed(after(minutes=1)), failed(after(minutes=2)), completed(after(minutes=3)), failed(after(minutes=4))
    )
    assert alerts == []


def test_failures_are_counted_for_each_general_separately() -> None:
    entries = [failed(after(minutes=number), f"gen-{number % 2}") for number in range(4)]
    assert watched(*entries)[1] == []
    assert keys(watched(*entries, failed(after(minutes=9), "gen-0"), failed(after(minutes=9), "gen-1"))[1]) == [
        "failures:gen-0",
        "failures:gen-1",
    ]


def test_people_are_not_notified_again_during_the_cool_down() -> None:
    watch, alerts = watched(*(failed(after(minutes=number)) for number in range(6)))
    assert keys(alerts) == ["failures:gen-pr"]
    watch, alerts = watched(failed(after(minutes=50)), watch=watch)
    assert alerts == []
    watch, alerts = watched(failed(after(minutes=67)), watch=watch)
    assert [alert.text for alert in alerts] == ["gen-pr failed 8 times in a row."]


def test_a_success_that_is_written_late_ends_the_series_at_the_time_when_it_happened() -> None:
    """The success happened before the third failure, and was committed after it."""
    first, second, third = (failed(after(seconds=number)) for number in (1, 2, 8))
    watch, alerts = watched(first, second, third, now=after(seconds=10))
    assert alerts == []
    _, alerts = watched(completed(after(seconds=5)), watch=watch, now=after(seconds=40))
    assert alerts == []


def test_failures_that_a_fast_clock_dates_in_the_future_are_reported_before_that_time() -> None:
    watch, _ = watched(*(failed(after(hours=24)) for _ in range(3)), now=START)
    assert keys(watched(watch=watch, now=after(seconds=30))[1]) == ["failures:gen-pr"]


def test_five_timeouts_within_an_hour_are_reported_and_make_the_health_yellow_for_an_hour() -> None:
    watch, alerts = watched(*(timed_out(after(minutes=14 * number)) for number in range(5)))
    assert [alert.text for alert in alerts] == ["5 soldiers exceeded their time limit within 60 minutes."]
    assert watch.many_timeouts(after(minutes=57), SETTINGS) == "soldier.timeout: 5"
    assert watch.many_timeouts(after(minutes=60), SETTINGS) == ""


def test_five_timeouts_within_more_than_an_hour_are_not_reported() -> None:
    watch, alerts = watched(*(timed_out(after(minutes=15 * number)) for number in range(5)))
    assert alerts == []
    assert watch.many_timeouts(after(minutes=60, seconds=30), SETTINGS) == ""


def test_timeouts_within_an_hour_are_counted_together_even_if_they_are_read_one_by_one() -> None:
    watch = AnomalyState()
    reported = []
    for number in range(5):
        watch, alerts = watched(timed_out(after(minutes=10 * number)), watch=watch)
        reported.append(len(alerts))
    assert reported == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("answer", [dispatched, discarded])
def test_an_event_that_the_king_has_dispatched_or_discarded_is_not_overdue(answer: object) -> None:
    assert callable(answer)
    watch, _ = watched(detected(START), answer(after(minutes=29)))
    assert watch.overdue(after(hours=9), SETTINGS) == []


def test_an_event_is_overdue_after_half_an_hour() -> None:
    watch, _ = watched(detected(START, "evt-github-1"), detected(after(minutes=1), "evt-github-2"))
    assert watch.overdue(after(minutes=29, seconds=59), SETTINGS) == []
    assert watch.overdue(after(minutes=30), SETTINGS) == ["evt-github-1"]
    assert watch.overdue(after(minutes=31), SETTINGS) == ["evt-github-1", "evt-github-2"]


def test_an_event_is_not_overdue_if_its_dispatch_is_read_before_its_detection() -> None:
    watch, _ = watched(dispatched(after(seconds=2)), detected(after(seconds=1)))
    assert watch.overdue(after(hours=9), SETTINGS) == []


def test_the_alert_about_a_waiting_event_says_whether_the_king_runs() -> None:
    watch, _ = watched(detected(START))
    now, waiting = after(minutes=31), ["evt-github-1"]
    (alert,) = msgspec.convert(msgspec.to_builtins(watch), AnomalyState).alert_undispatched(
        waiting, now, SETTINGS, None
    )
    assert ("31 minutes" in alert.text, "The King runs" in alert.text) == (True, True)
    (alert,) = watch.alert_undispatched(waiting, now, SETTINGS, timedelta(seconds=500))
    assert ("500 seconds" in alert.text, "The King runs" in alert.text) == (True, False)
    assert watch.alert_undispatched(waiting, now + LATER, SETTINGS, timedelta(seconds=530)) == []


def test_an_event_that_no_longer_waits_is_forgotten() -> None:
    watch, _ = watched(detected(START))
    watch.forget({"evt-github-1"})
    assert watch.overdue(after(hours=1), SETTINGS) == []


def test_the_stored_anomalies_stay_small_however_many_events_wait_and_fail() -> None:
    entries = [detected(after(seconds=number), f"evt-github-{number}") for number in range(3000)]
    entries += [timed_out(after(seconds=number)) for number in range(3000)]
    watch, _ = watched(*entries)
    assert len(msgspec.json.encode(watch)) < 100_000
    assert watch.overdue(after(hours=2), SETTINGS)[0] == "evt-github-0"
