"""What may start under each state of health and money, and the order of waiting events."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.documents import Priority
from kingdom.court.king.admission_rules import (
    HEAD_START,
    AdmissionLevel,
    AdmissionRule,
    budget_rule,
    health_rule,
    rank_of,
    rank_text,
    slot_limit,
    strictest_rule,
)
from kingdom.court.king.settings import KingSettings
from kingdom.court.quota import Quota
from tests.unit.court.king.making import NOON

SETTINGS = KingSettings()
_moments = st.integers(-10_000_000_000, 5_000_000_000_000).map(lambda number: NOON + timedelta(milliseconds=number))
_waits = st.tuples(_moments, st.sampled_from(Priority))


@given(one=_waits, other=_waits)
def test_waiting_events_are_ordered_by_their_time_minus_the_head_start_of_their_priority(
    one: tuple[datetime, Priority], other: tuple[datetime, Priority]
) -> None:
    ranks = [rank_of(since, priority) for since, priority in (one, other)]
    moments = [since - HEAD_START[priority] for since, priority in (one, other)]
    apart = abs(moments[0] - moments[1]) >= timedelta(milliseconds=1)
    assert not apart or (ranks[0] < ranks[1]) == (moments[0] < moments[1])
    texts = [rank_text(rank) for rank in ranks]
    assert (texts[0] < texts[1]) == (ranks[0] < ranks[1])


@given(since=_moments, priority=st.sampled_from(Priority), lets=st.sampled_from(AdmissionLevel))
def test_an_event_that_waits_long_enough_is_admitted_at_every_level_but_nothing(
    since: datetime, priority: Priority, lets: AdmissionLevel
) -> None:
    rule = AdmissionRule(name="health", level=lets, reason="")
    rank = rank_of(since, priority)
    assert rule.admits(rank, since + HEAD_START[Priority.HIGH]) == (lets is not AdmissionLevel.NOTHING)
    at_once = {
        AdmissionLevel.EVERYTHING: True,
        AdmissionLevel.NORMAL: priority is not Priority.LOW,
        AdmissionLevel.HIGH: priority is Priority.HIGH,
        AdmissionLevel.NOTHING: False,
    }
    assert rule.admits(rank, since) == at_once[lets]


def reading(level: str, age_seconds: float = 0) -> dict[str, str]:
    return {"level": level, "reason": "cpu", "at": (NOON - timedelta(seconds=age_seconds)).isoformat()}


@pytest.mark.parametrize(
    ("level", "lets"),
    [
        ("green", AdmissionLevel.EVERYTHING),
        ("yellow", AdmissionLevel.HIGH),
        ("orange", AdmissionLevel.NOTHING),
        ("red", AdmissionLevel.NOTHING),
        ("purple", AdmissionLevel.NOTHING),
    ],
)
def test_each_level_of_health_has_its_admission_level(level: str, lets: AdmissionLevel) -> None:
    rule = health_rule(reading(level), NOON, SETTINGS)
    assert (rule.level, rule.reason) == (lets, f"health is {level} (cpu)")


def test_a_health_reading_that_is_bad_only_because_of_the_cpu_admits_everything() -> None:
    for busy in (
        {**reading("red"), "reason": "cpu_percent: 95", "stop_level": "green", "stop_reason": "memory_percent: 20"},
        {**reading("red"), "reason": "cpu_percent: 95"},
    ):
        assert health_rule(busy, NOON, SETTINGS).level is AdmissionLevel.EVERYTHING
    short = {**reading("red"), "reason": "cpu_percent: 95", "stop_level": "orange", "stop_reason": "memory_percent: 82"}
    rule = health_rule(short, NOON, SETTINGS)
    assert (rule.level, rule.reason) == (AdmissionLevel.NOTHING, "the machine is short of memory (82 % used)")


@pytest.mark.parametrize(
    ("share", "soldiers", "slots"), [(1, 3, 3), (0.5, 3, 2), (0.5, 8, 4), (0, 3, 1), (0, 1, 1), (0.5, 1, 1)]
)
def test_processor_pressure_lowers_the_number_of_slots_but_never_below_one(
    share: float, soldiers: int, slots: int
) -> None:
    busy = {**reading("red"), "slot_share": share, "slot_reason": "cpu_percent: 97"}
    limit = slot_limit(busy, KingSettings(soldiers=soldiers))
    assert limit.slots == slots
    assert limit.reason == ("the machine is busy (CPU pressure 97 %)" if slots < soldiers else "")


def test_without_a_valid_health_reading_all_slots_can_be_used() -> None:
    for unread in (None, {"level": 3}, {**reading("red"), "slot_share": "none"}):
        assert slot_limit(unread, SETTINGS).slots == 3


def test_a_health_reading_is_valid_for_two_minutes() -> None:
    assert health_rule(reading("green", 120), NOON, SETTINGS).level is AdmissionLevel.EVERYTHING
    stale = health_rule(reading("green", 121), NOON, SETTINGS)
    assert stale.level is AdmissionLevel.NOTHING
    assert stale.reason == "the last health reading is 2 min old, which counts as health level orange"


def test_without_a_health_reading_everything_may_begin() -> None:
    assert health_rule(None, NOON, SETTINGS).level is AdmissionLevel.EVERYTHING


def test_an_unreadable_health_reading_lets_nothing_begin() -> None:
    assert health_rule({"level": "green"}, NOON, SETTINGS).level is AdmissionLevel.NOTHING


@pytest.mark.parametrize(
    ("spent", "lets"),
    [
        ("0", AdmissionLevel.EVERYTHING),
        ("209.99", AdmissionLevel.EVERYTHING),
        ("210", AdmissionLevel.NORMAL),
        ("270", AdmissionLevel.HIGH),
        ("300", AdmissionLevel.NOTHING),
        ("400", AdmissionLevel.NOTHING),
    ],
)
def test_each_share_of_the_money_lets_less_begin(spent: str, lets: AdmissionLevel) -> None:
    rule = budget_rule(Quota(scope="money", limit=Decimal(300), spent=Decimal(spent)), SETTINGS)
    assert rule.level is lets
    assert rule.reason == f"${Decimal(spent):.2f} of the daily $300.00 is spent"


@given(rules=st.lists(st.sampled_from(AdmissionLevel), min_size=1))
def test_the_strictest_limit_counts(rules: list[AdmissionLevel]) -> None:
    every = [AdmissionRule(name=str(number), level=lets, reason="") for number, lets in enumerate(rules)]
    assert strictest_rule(*every).level == max(rules)
