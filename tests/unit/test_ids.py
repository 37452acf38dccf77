import re
import time
from datetime import timedelta
from uuid import RFC_4122

import pytest

from kingdom.clock import utc_now
from kingdom.ids import first_id, new_event_id, new_id, new_trace_id


def test_an_event_id_is_a_uuid_of_version_7() -> None:
    for _ in range(1000):
        event_id = new_event_id()
        assert (event_id.version, event_id.variant) == (7, RFC_4122)


def test_an_event_id_contains_the_millisecond_of_its_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_234_567_891_234_999_999)
    assert new_event_id().int >> 80 == 1_234_567_891_234


def test_event_ids_of_later_milliseconds_sort_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    earlier = new_event_id()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**12)
    later = new_event_id()
    assert earlier < later
    assert str(earlier) < str(later)


def test_event_ids_are_unique_and_use_every_random_bit() -> None:
    ids = [new_event_id() for _ in range(5000)]
    assert len(set(ids)) == len(ids)
    fixed = (0xF << 76) | (0b11 << 62)
    seen_ones = seen_zeros = 0
    for event_id in ids:
        seen_ones |= event_id.int
        seen_zeros |= ~event_id.int
    random_bits = ((1 << 80) - 1) & ~fixed
    assert seen_ones & random_bits == random_bits
    assert seen_zeros & random_bits == random_bits


def test_a_trace_id_has_the_format_of_w3c() -> None:
    ids = {new_trace_id() for _ in range(1000)}
    assert len(ids) == 1000
    for trace_id in ids:
        assert re.fullmatch(r"[0-9a-f]{32}", trace_id)
        assert set(trace_id) != {"0"}


def test_a_short_id_sorts_by_its_creation_time() -> None:
    before = utc_now()
    made = new_id("wf")
    assert first_id("wf", before) <= made < first_id("wf", before + timedelta(minutes=1))
    assert first_id("wf", before - timedelta(days=3)) < first_id("wf", before)
