"""The daily budget: its warning levels, and its reset at midnight."""

from datetime import date
from decimal import Decimal

import pytest

from kingdom.chronicle.events import TokenBudgetReset, TokenStatusChanged
from kingdom.court.chamberlain.budget import BudgetState, TokenStatus, next_budget, status_of
from kingdom.court.chamberlain.settings import BudgetSettings
from kingdom.court.quota import MONEY, Quota

SETTINGS = BudgetSettings()
LIMIT = Decimal(300)
SEVENTH, EIGHTH = date(2026, 2, 7), date(2026, 2, 8)


def money(spent: str, day: date = SEVENTH) -> Quota:
    return Quota(scope=MONEY, limit=LIMIT, spent=Decimal(spent), period=str(day), holders={"task-1": Decimal(50)})


@pytest.mark.parametrize(
    ("spent", "status"),
    [
        ("0", "ok"),
        ("209.99", "ok"),
        ("210", "warning"),
        ("269.99", "warning"),
        ("270", "critical"),
        ("400", "critical"),
    ],
)
def test_the_status_changes_at_70_and_90_percent(spent: str, status: str) -> None:
    assert status_of(Decimal(spent), LIMIT, SETTINGS) == status


def test_a_change_is_reported_once() -> None:
    budget, events = next_budget(BudgetState(day=SEVENTH), money("215.40"), SEVENTH, SETTINGS)
    assert events == [TokenStatusChanged(from_="ok", to="warning", daily_cost_usd="215.40")]
    assert next_budget(budget, money("216"), SEVENTH, SETTINGS)[1] == []


def test_a_new_day_begins_with_nothing_spent() -> None:
    before = BudgetState(day=SEVENTH, status=TokenStatus.CRITICAL, cost_usd=Decimal(280))
    budget, events = next_budget(before, money("285.60"), EIGHTH, SETTINGS)
    assert events == [
        TokenBudgetReset(date="2026-02-08", previous_cost="285.60"),
        TokenStatusChanged(from_="critical", to="ok", daily_cost_usd="0.00"),
    ]
    assert budget == BudgetState(day=EIGHTH, status=TokenStatus.OK, cost_usd=Decimal(0))
    assert next_budget(budget, money("0", EIGHTH), EIGHTH, SETTINGS)[1] == []


def test_the_cost_of_the_old_day_is_known_even_if_the_king_has_begun_the_new_one() -> None:
    before = BudgetState(day=SEVENTH, cost_usd=Decimal("99.50"))
    budget, events = next_budget(before, money("3", EIGHTH), EIGHTH, SETTINGS)
    assert events == [TokenBudgetReset(date="2026-02-08", previous_cost="99.50")]
    assert budget.cost_usd == 3


def test_neither_the_first_check_nor_a_clock_that_was_set_back_begins_a_day() -> None:
    assert next_budget(BudgetState(), None, SEVENTH, SETTINGS) == (BudgetState(day=SEVENTH), [])
    budget, events = next_budget(BudgetState(day=EIGHTH), money("5", EIGHTH), SEVENTH, SETTINGS)
    assert (budget.day, events) == (EIGHTH, [])
