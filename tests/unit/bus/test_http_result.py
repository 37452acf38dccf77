from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Acked, CallResult, Rejected, Throttled, Unknown, classify_response
from kingdom.bus.effects.http_result import retry_after

THROTTLED = {418, 425, 429}
UNKNOWN = {408, 409}


def expected(status: int) -> CallResult:
    reason = f"HTTP {status}"
    if status in THROTTLED:
        return Throttled(None, reason)
    if status in UNKNOWN or status >= 500 or status < 200:
        return Unknown(reason)
    return Acked({"id": 1}) if status < 300 else Rejected(reason)


def test_every_status_is_classified() -> None:
    statuses = range(100, 600)
    assert {s: classify_response(s, {}, {"id": 1}) for s in statuses} == {s: expected(s) for s in statuses}


@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_a_wait_in_seconds_is_read_under_any_spelling_of_the_header(name: str) -> None:
    assert classify_response(429, {"Date": "x", name: " 120 "}) == Throttled(timedelta(minutes=2), "HTTP 429")


def test_a_wait_until_a_date_is_read() -> None:
    before = datetime.now(UTC)
    in_an_hour = before.replace(microsecond=0) + timedelta(hours=1)
    wait = retry_after({"retry-after": format_datetime(in_an_hour, usegmt=True)})
    assert wait is not None
    assert in_an_hour - datetime.now(UTC) <= wait <= in_an_hour - before


def test_a_wait_longer_than_thirty_days_is_shortened() -> None:
    assert retry_after({"retry-after": "9" * 30}) == timedelta(days=30)


def test_a_date_in_the_past_is_no_wait() -> None:
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == timedelta()


def test_a_date_without_a_zone_is_taken_for_utc() -> None:
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}) == timedelta()


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "²", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_an_unreadable_wait_is_ignored(value: str) -> None:
    assert retry_after({"retry-after": value}) is None
    assert classify_response(429, {"retry-after": value}) == Throttled(None, "HTTP 429")


@given(
    st.text() | st.integers().map(str) | st.from_regex(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d")
)
def test_no_header_can_make_the_classification_fail(value: str) -> None:
    answer = classify_response(429, {"Retry-After": value})
    assert isinstance(answer, Throttled)
    assert answer.after is None or answer.after >= timedelta()
