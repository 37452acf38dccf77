"""A quota is never exceeded by requests, and never negative."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.quota import Quota
from kingdom.errors import IllegalTransition

_amounts = st.decimals(min_value=0, max_value=50, places=2)
_holders = st.sampled_from([f"task-{number}" for number in range(6)])
_steps = st.lists(st.tuples(st.sampled_from(["hold", "free", "book", "day"]), _holders, _amounts), max_size=60)


@given(steps=_steps, limit=st.decimals(min_value=1, max_value=100, places=2))
def test_any_sequence_of_holds_and_releases_stays_within_the_limit(
    steps: list[tuple[str, str, Decimal]], limit: Decimal
) -> None:
    quota = Quota(scope="money", limit=limit)
    for number, (step, holder, amount) in enumerate(steps):
        before = quota
        match step:
            case "hold" if quota.free(holder).fits(amount):
                quota = quota.hold(holder, amount)
                assert quota.spent + quota.held <= limit
            case "hold":
                with pytest.raises(IllegalTransition):
                    quota.hold(holder, amount)
            case "free":
                quota = quota.free(holder)
                assert quota.free(holder) == quota
            case "book":
                quota = quota.book(amount)
                assert quota.spent == before.spent + amount
            case "day":
                quota = quota.with_period(str(number))
                assert quota.holders == before.holders
        assert quota.room >= 0
        assert quota.spent >= 0
        assert all(each >= 0 for each in quota.holders.values())


def test_a_holder_counts_once() -> None:
    quota = Quota(scope="soldiers", limit=Decimal(1)).hold("task-1").hold("task-1")
    assert quota.held == 1


def test_a_hold_beyond_the_limit_is_possible_and_leaves_no_room() -> None:
    quota = Quota(scope="soldiers", limit=Decimal(1)).hold("task-1").hold("task-2", may_exceed=True)
    assert (quota.held, quota.room, quota.fits()) == (Decimal(2), Decimal(0), False)


def test_no_holder_has_less_than_zero_slots() -> None:
    with pytest.raises(IllegalTransition):
        Quota(scope="money", limit=Decimal(1)).hold("task-1", Decimal(-1))


def test_a_new_day_resets_what_was_spent_and_keeps_what_is_held() -> None:
    quota = Quota(scope="money", limit=Decimal(10), period="2026-11-15").hold("task-1", Decimal(2)).book(Decimal(5))
    assert quota.with_period("2026-11-15") == quota
    tomorrow = quota.with_period("2026-11-16")
    assert (tomorrow.spent, tomorrow.held) == (Decimal(0), Decimal(2))
