import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Envelope
from tests.unit.bus.deliveries import delivery


@pytest.mark.parametrize(
    ("crashes", "suspect", "lost_alone"),
    [(0, False, 0), (1, True, 0), (2, True, 1), (3, True, 2), (4, True, 3)],
)
def test_an_event_is_suspect_after_one_lost_lease_and_only_later_losses_count(
    crashes: int, *, suspect: bool, lost_alone: int
) -> None:
    found = delivery(crash_count=crashes)
    assert (found.suspect, found.lost_alone) == (suspect, lost_alone)


@given(st.integers(0, 10), st.integers(1, 30), st.integers(1, 20))
def test_an_event_is_quarantined_after_three_leases_lost_alone_or_too_many_attempts(
    crashes: int, attempt: int, max_attempts: int
) -> None:
    verdict = delivery(crash_count=crashes, attempt=attempt, max_attempts=max_attempts).outcome_without_running()
    if crashes >= 4:
        assert verdict is not None
        assert verdict.code == "quarantined"
    elif attempt > max_attempts:
        assert verdict is not None
        assert verdict.code == "attempts_exhausted"
    else:
        assert verdict is None


def test_only_keyed_events_of_ordered_streams_wait_for_each_other() -> None:
    keyed = Envelope(type="Job", partition_key="k")
    assert delivery(ordered=True, envelope=keyed).ordering_key == ("jobs", "k")
    assert delivery(ordered=False, envelope=keyed).ordering_key is None
    assert delivery(ordered=True).ordering_key is None
