from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kingdom.backends.postgres.claim_pace import EVERYTHING, ClaimPace

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def started() -> ClaimPace:
    """Return a pace after an unbounded claim at second 0."""
    pace = ClaimPace()
    assert pace.lower_bound(0.0) == EVERYTHING
    pace.record_claim([NOON], full=True, bound=EVERYTHING, took=0.001, now=0.0)
    return pace


def test_the_first_claim_checks_everything() -> None:
    assert ClaimPace().lower_bound(0.0) == EVERYTHING


def test_a_full_claim_is_followed_by_one_from_its_last_position() -> None:
    assert started().lower_bound(0.5) == NOON


def test_a_short_claim_is_followed_by_one_from_an_earlier_position() -> None:
    pace = started()
    pace.record_claim([NOON + SECOND], full=False, bound=NOON, took=0.001, now=0.1)
    assert pace.lower_bound(0.2) == NOON + SECOND - 2 * SECOND


def test_an_empty_claim_keeps_the_position_and_checks_slightly_earlier_ones() -> None:
    pace = started()
    pace.record_claim([], full=False, bound=NOON, took=0.001, now=0.1)
    assert pace.lower_bound(0.2) == NOON - 2 * SECOND


def test_an_empty_stream_is_checked_completely() -> None:
    pace = ClaimPace()
    pace.record_claim([], full=False, bound=EVERYTHING, took=0.001, now=0.0)
    assert pace.lower_bound(0.1) == EVERYTHING


def test_everything_is_checked_again_after_a_second() -> None:
    pace = started()
    assert pace.lower_bound(0.99) == NOON
    assert pace.lower_bound(1.0) == EVERYTHING


def test_the_next_full_scan_comes_later_if_the_last_one_was_slow() -> None:
    pace = ClaimPace()
    pace.record_claim([NOON], full=True, bound=EVERYTHING, took=0.2, now=0.0)
    assert pace.lower_bound(3.9) == NOON
    assert pace.lower_bound(4.0) == EVERYTHING


def test_a_claim_delayed_by_its_own_process_does_not_postpone_the_next_check_for_long() -> None:
    pace = ClaimPace()
    pace.record_claim([NOON], full=True, bound=EVERYTHING, took=300.0, now=0.0)
    assert pace.lower_bound(10.0) == EVERYTHING


claims = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.floats(0, 0.3),
        st.lists(st.integers(-5, 5).map(lambda seconds: NOON + seconds * SECOND), max_size=3),
        st.booleans(),
    ),
    max_size=60,
)


@given(claims)
def test_no_event_starves_because_everything_is_checked_in_time(
    plan: list[tuple[float, float, list[datetime], bool]],
) -> None:
    pace, now, due_again = ClaimPace(), 0.0, 0.0
    for pause, took, due, full in plan:
        now += pause
        bound = pace.lower_bound(now)
        if now >= due_again:
            assert bound == EVERYTHING
        now += took
        pace.record_claim(due, full=full, bound=bound, took=took, now=now)
        if bound == EVERYTHING:
            due_again = now + min(max(1.0, 20 * took), 10.0)


@given(claims)
def test_a_lower_bound_is_never_above_the_newest_claimed_event(
    plan: list[tuple[float, float, list[datetime], bool]],
) -> None:
    pace, now, newest = ClaimPace(), 0.0, None
    for pause, took, due, full in plan:
        now += pause
        bound = pace.lower_bound(now)
        assert bound == EVERYTHING or (newest is not None and bound <= newest)
        now += took
        pace.record_claim(due, full=full, bound=bound, took=took, now=now)
        newest = max(due) if due else newest


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500)),
        max_size=40,
    )
)
def test_the_number_of_heads_stays_between_one_and_the_limit(plan: list[tuple[int, int, int]]) -> None:
    pace = ClaimPace()
    for limit, runs, events in plan:
        assert 1 <= pace.heads(limit) <= limit
        pace.record_keys(keys=min(runs, limit), events=min(events, limit), limit=limit)


def test_a_claim_takes_more_heads_while_runs_are_short_and_fewer_while_they_are_long() -> None:
    pace, limit = ClaimPace(), 100
    first = pace.heads(limit)
    assert first == 12
    for _ in range(10):
        pace.record_keys(keys=pace.heads(limit), events=pace.heads(limit), limit=limit)
    assert pace.heads(limit) == limit
    for _ in range(100):
        pace.record_keys(keys=pace.heads(limit), events=limit, limit=limit)
    assert pace.heads(limit) == first


def test_the_number_of_heads_stays_if_fewer_keys_had_events() -> None:
    pace, limit = ClaimPace(), 100
    first = pace.heads(limit)
    pace.record_keys(keys=first - 1, events=20, limit=limit)
    assert pace.heads(limit) == first
