from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Accepted, Acked, CallResult, Rejected, Target, Throttled, Unknown
from kingdom.bus.effects.target_limiter import TargetLimiter, TargetLimiters


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def limiter(clock: Clock, **options: object) -> TargetLimiter:
    return TargetLimiter(Target(**{"name": "shop", **options}), clock)  # type: ignore[arg-type]


def test_a_target_without_a_rate_is_always_open() -> None:
    free = limiter(Clock())
    assert [free.try_acquire() for _ in range(100)] == [None] * 100


def test_the_rate_allows_a_burst_and_then_gives_a_time_to_wait() -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=2.0, burst=3)
    assert [limited.try_acquire() for _ in range(3)] == [None] * 3
    assert limited.try_acquire() == (timedelta(seconds=0.5), "rate limit of shop")
    clock.now += 0.5
    assert limited.try_acquire() is None
    assert limited.try_acquire() is not None


def test_refused_callers_get_different_times_to_return() -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=2.0)
    assert limited.try_acquire() is None
    refused = [limited.try_acquire() for _ in range(3)]
    assert [closed and closed[0].total_seconds() for closed in refused] == [0.5, 1.0, 1.5]
    for _ in range(3):
        clock.now += 0.5
        assert limited.try_acquire() is None
    assert limited.try_acquire() == (timedelta(seconds=0.5), "rate limit of shop")


def test_times_given_to_refused_callers_do_not_count_once_they_have_passed() -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=2.0)
    assert [limited.try_acquire() is None for _ in range(500)].count(True) == 1
    # The refused callers have not returned, for example because another process made their calls.
    clock.now += 3600
    assert limited.try_acquire() is None
    assert limited.try_acquire() == (timedelta(seconds=0.5), "rate limit of shop")


def test_an_idle_time_saves_up_no_more_than_the_burst() -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=100.0, burst=2)
    clock.now += 3600
    assert [limited.try_acquire() is None for _ in range(3)] == [True, True, False]


@given(
    st.floats(0.1, 100),
    st.integers(1, 10),
    st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_span_of_time_sees_more_calls_than_its_rate_and_a_burst(
    rate: float, burst: int, pauses: list[float]
) -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=rate, burst=burst)
    entered = []
    for pause in pauses:
        clock.now += pause
        if limited.try_acquire() is None:
            entered.append(clock.now)
    for first in range(len(entered)):
        for last in range(first, len(entered)):
            assert last - first + 1 <= burst + (entered[last] - entered[first]) * rate + 1e-6


@given(st.floats(0.1, 100), st.integers(1, 5))
def test_a_caller_that_waits_as_long_as_required_may_call(rate: float, burst: int) -> None:
    clock = Clock()
    limited = limiter(clock, calls_per_second=rate, burst=burst)
    for _ in range(20):
        closed = limited.try_acquire()
        if closed:
            # A timedelta counts microseconds, so a wait may be rounded down by one.
            clock.now += closed[0].total_seconds() + 2e-6
            assert limited.try_acquire() is None


FAILURE = Unknown("timeout")


def test_repeated_failures_open_the_circuit_for_its_time() -> None:
    clock = Clock()
    fragile = limiter(clock, failures_to_open=3, open_for=timedelta(seconds=60))
    for _ in range(2):
        fragile.record(FAILURE)
        assert fragile.try_acquire() is None
    fragile.record(FAILURE)
    assert fragile.try_acquire() == (timedelta(seconds=60), "circuit of shop is open")
    clock.now += 59
    assert fragile.try_acquire() == (timedelta(seconds=1), "circuit of shop is open")
    clock.now += 1
    assert fragile.try_acquire() is None


def test_a_half_open_circuit_opens_again_at_the_first_failure() -> None:
    clock = Clock()
    fragile = limiter(clock, failures_to_open=3, open_for=timedelta(seconds=60))
    for _ in range(3):
        fragile.record(FAILURE)
    clock.now += 60
    fragile.record(FAILURE)
    assert fragile.try_acquire() == (timedelta(seconds=60), "circuit of shop is open")


@pytest.mark.parametrize("answer", [Acked(), Accepted(), Rejected("no")])
def test_any_known_result_closes_a_half_open_circuit(answer: CallResult) -> None:
    clock = Clock()
    fragile = limiter(clock, failures_to_open=3, open_for=timedelta(seconds=60))
    for _ in range(3):
        fragile.record(FAILURE)
    clock.now += 60
    fragile.record(answer)
    for _ in range(2):
        fragile.record(FAILURE)
        assert fragile.try_acquire() is None


@pytest.mark.parametrize("answer", [Acked(), Accepted(), Rejected("no")])
def test_failures_count_only_in_a_row(answer: CallResult) -> None:
    fragile = limiter(Clock(), failures_to_open=2)
    for _ in range(10):
        fragile.record(FAILURE)
        fragile.record(answer)
    assert fragile.try_acquire() is None


def test_a_target_that_asks_for_a_pause_is_not_called_before_its_end() -> None:
    clock = Clock()
    busy = limiter(clock)
    busy.record(Throttled(timedelta(seconds=9)))
    assert busy.try_acquire() == (timedelta(seconds=9), "circuit of shop is open")
    busy.record(Throttled(timedelta(seconds=3)))
    assert busy.try_acquire() == (timedelta(seconds=9), "circuit of shop is open")
    busy.record(Throttled(None))
    clock.now += 9
    assert busy.try_acquire() is None


def test_a_call_that_an_open_circuit_refuses_does_not_count_for_the_rate() -> None:
    clock = Clock()
    both = limiter(clock, calls_per_second=0.001, burst=1)
    both.record(Throttled(timedelta(seconds=5)))
    assert both.try_acquire() is not None
    clock.now += 5
    assert both.try_acquire() is None


def test_each_target_name_has_one_limiter() -> None:
    limiters = TargetLimiters()
    assert limiters.get(Target(name="a")) is limiters.get(Target(name="a"))
    assert limiters.get(Target(name="a")) is not limiters.get(Target(name="b"))
