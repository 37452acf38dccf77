from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import RetryPolicy

chances = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 10**9)
policies = st.builds(
    RetryPolicy,
    base=st.timedeltas(timedelta(milliseconds=1), timedelta(seconds=60)),
    factor=st.floats(1, 10),
    cap=st.timedeltas(timedelta(seconds=60), timedelta(hours=1)),
    jitter=st.floats(0, 0.5),
)
MIDDLE = 0.5
TICK = timedelta(microseconds=2)


@given(policies, attempts, chances)
def test_a_wait_is_positive_and_within_the_jitter_around_the_cap(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    assert timedelta() < policy.delay(attempt, chance=chance) <= policy.cap * (1 + policy.jitter) + TICK


@given(policies, attempts, chances)
def test_jitter_stays_within_its_share_of_the_plain_wait(policy: RetryPolicy, attempt: int, chance: float) -> None:
    plain = policy.delay(attempt, chance=MIDDLE)
    assert abs(policy.delay(attempt, chance=chance) - plain) <= plain * policy.jitter + TICK


@given(policies, attempts, attempts, chances)
def test_a_later_attempt_never_waits_less(policy: RetryPolicy, one: int, other: int, chance: float) -> None:
    earlier, later = sorted((one, other))
    assert policy.delay(earlier, chance=chance) <= policy.delay(later, chance=chance)


@given(chances)
def test_the_default_jitter_is_a_fifth_up_or_down(chance: float) -> None:
    waits = RetryPolicy().delay(1, chance=chance)
    assert timedelta(seconds=0.8) <= waits <= timedelta(seconds=1.2)


def test_the_default_doubles_from_a_second_up_to_its_cap() -> None:
    waits = [RetryPolicy().delay(attempt, chance=MIDDLE).total_seconds() for attempt in range(1, 12)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_chance_spreads_waits_over_the_whole_jitter() -> None:
    waits = [RetryPolicy().delay(1).total_seconds() for _ in range(2000)]
    assert 0.8 <= min(waits) < 0.85
    assert 1.15 < max(waits) <= 1.2


@given(policies, st.integers(-(10**9), 0), chances)
def test_an_attempt_below_one_waits_like_the_first(policy: RetryPolicy, attempt: int, chance: float) -> None:
    assert policy.delay(attempt, chance=chance) == policy.delay(1, chance=chance)
