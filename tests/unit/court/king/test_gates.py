"""What health and money let begin, and the one order in which things wait."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.documents import Priority
from kingdom.court.king.gates import BONUS, Gate, Lets, budget_gate, health_gate, rank_of, rank_text, strictest
from kingdom.court.king.settings import KingSettings
from kingdom.court.quota import Quota
from tests.unit.court.king.making import NOON

SETTINGS = KingSettings()
_moments = st.integers(-10_000_000_000, 5_000_000_000_000).map(lambda number: NOON + timedelta(milliseconds=number))
_waits = st.tuples(_moments, st.sampled_from(Priority))


@given(one=_waits, other=_waits)
def test_of_two_the_one_that_came_earlier_by_the_bonus_of_its_priority_is_first(
    one: tuple[datetime, Priority], other: tuple[datetime, Priority]
) -> None:
    ranks = [rank_of(since, priority) for since, priority in (one, other)]
    moments = [since - BONUS[priority] for since, priority in (one, other)]
    apart = abs(moments[0] - moments[1]) >= timedelta(milliseconds=1)
    assert not apart or (ranks[0] < ranks[1]) == (moments[0] < moments[1])
    texts = [rank_text(rank) for rank in ranks]
    assert (texts[0] < texts[1]) == (ranks[0] < ranks[1])


@given(since=_moments, priority=st.sampled_from(Priority), lets=st.sampled_from(Lets))
def test_everything_that_waits_long_enough_passes_a_gate_that_is_not_shut(
    since: datetime, priority: Priority, lets: Lets
) -> None:
    gate = Gate(name="health", lets=lets, reason="")
    rank = rank_of(since, priority)
    assert gate.admits(rank, since + BONUS[Priority.HIGH]) == (lets is not Lets.NOTHING)
    at_once = {
        Lets.EVERYTHING: True,
        Lets.NORMAL: priority is not Priority.LOW,
        Lets.HIGH: priority is Priority.HIGH,
        Lets.NOTHING: False,
    }
    assert gate.admits(rank, since) == at_once[lets]


def reading(level: str, age_seconds: float = 0) -> dict[str, str]:
    return {"level": level, "reason": "cpu", "at": (NOON - timedelta(seconds=age_seconds)).isoformat()}


@pytest.mark.parametrize(
    ("level", "lets"),
    [
        ("green", Lets.EVERYTHING),
        ("yellow", Lets.HIGH),
        ("orange", Lets.NOTHING),
        ("red", Lets.NOTHING),
        ("purple", Lets.NOTHING),
    ],
)
def test_each_level_of_health_lets_its_part_begin(level: str, lets: Lets) -> None:
    gate = health_gate(reading(level), NOON, SETTINGS)
    assert (gate.lets, gate.reason) == (lets, f"the health is {level}: cpu")


def test_a_reading_counts_for_two_minutes() -> None:
    assert health_gate(reading("green", 120), NOON, SETTINGS).lets is Lets.EVERYTHING
    stale = health_gate(reading("green", 121), NOON, SETTINGS)
    assert stale.lets is Lets.NOTHING
    assert stale.reason == "the last reading of the health is 121 s old, which counts as orange"


def test_without_anybody_who_measures_everything_may_begin() -> None:
    assert health_gate(None, NOON, SETTINGS).lets is Lets.EVERYTHING


def test_a_reading_that_cannot_be_read_lets_nothing_begin() -> None:
    assert health_gate({"level": "green"}, NOON, SETTINGS).lets is Lets.NOTHING


@pytest.mark.parametrize(
    ("spent", "lets"),
    [
        ("0", Lets.EVERYTHING),
        ("209.99", Lets.EVERYTHING),
        ("210", Lets.NORMAL),
        ("270", Lets.HIGH),
        ("300", Lets.NOTHING),
        ("400", Lets.NOTHING),
    ],
)
def test_each_share_of_the_money_lets_less_begin(spent: str, lets: Lets) -> None:
    gate = budget_gate(Quota(scope="money", limit=Decimal(300), spent=Decimal(spent)), SETTINGS)
    assert gate.lets is lets
    assert gate.reason == f"${Decimal(spent):.2f} of $300.00 are spent today"


@given(gates=st.lists(st.sampled_from(Lets), min_size=1))
def test_the_strictest_gate_counts(gates: list[Lets]) -> None:
    every = [Gate(name=str(number), lets=lets, reason="") for number, lets in enumerate(gates)]
    assert strictest(*every).lets == max(gates)
