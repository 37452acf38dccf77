"""The daily budget: how much of it is spent, and the start of a new day."""

from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import InternalEvent, TokenBudgetReset, TokenStatusChanged
from kingdom.court.chamberlain.calendar import day_of
from kingdom.court.chamberlain.records import STATE, load_or_create, log_internal_event, notify, save_if_changed
from kingdom.court.chamberlain.settings import BudgetSettings, ChamberlainSettings
from kingdom.court.quota import MONEY, QUOTAS, Quota, read_quota, save_quota
from kingdom.workflow.records import run_transaction

_BUDGET = "budget"
_NOTHING = Decimal(0)


class TokenStatus(StrEnum):
    """How much of the daily budget is spent."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """The budget as the Chamberlain last saw it."""

    day: date | None = None
    status: TokenStatus = TokenStatus.OK
    cost_usd: Decimal = _NOTHING


def status_of(spent: Decimal, limit: Decimal, settings: BudgetSettings) -> TokenStatus:
    """Return the status for a spent amount. Reserved amounts do not count."""
    percent = spent * 100
    if percent >= limit * Decimal(str(settings.critical_percent)):
        return TokenStatus.CRITICAL
    return TokenStatus.WARNING if percent >= limit * Decimal(str(settings.warning_percent)) else TokenStatus.OK


def next_budget(
    before: BudgetState, money: Quota | None, today: date, settings: BudgetSettings
) -> tuple[BudgetState, list[InternalEvent]]:
    """Return the new budget, and the internal events to log: a new day first, then a changed status.

    The cost of the old day comes from the quota. If another process has already started the new day there, the cost
    comes from `before`.
    """
    new_events: list[InternalEvent] = []
    is_new_day = before.day is not None and today > before.day
    if is_new_day:
        is_old = money is not None and money.period == str(before.day)
        previous = money.spent if money and is_old else before.cost_usd
        new_events.append(TokenBudgetReset(date=str(today), previous_cost=f"{previous:.2f}"))
    spent = money.spent if money and money.period == str(today) else _NOTHING
    status = status_of(spent, money.limit, settings) if money else TokenStatus.OK
    if status is not before.status:
        new_events.append(TokenStatusChanged(from_=before.status, to=status, daily_cost_usd=f"{spent:.2f}"))
    day = today if before.day is None or is_new_day else before.day
    return BudgetState(day=day, status=status, cost_usd=spent), new_events


async def update_budget(bus: Bus, settings: ChamberlainSettings, zone: ZoneInfo, now: datetime) -> BudgetState:
    """Start a new day at midnight in the court's time zone. Log a new day and a changed status of the budget."""
    today = day_of(now, zone)

    async def act(transaction: Transaction) -> BudgetState:
        record, before = await load_or_create(transaction, STATE, _BUDGET, BudgetState)
        stored = await transaction.get(QUOTAS.name, MONEY)
        money = read_quota(stored.doc) if stored else None
        budget, new_events = next_budget(before, money, today, settings.budget)
        for event in new_events:
            await log_internal_event(transaction, event, now)
        if stored and money and money.period < str(today):
            await save_quota(transaction, money.with_period(str(today)), stored)
        if budget.status is TokenStatus.CRITICAL and before.status is not TokenStatus.CRITICAL:
            text = f"${budget.cost_usd:.2f} of the daily budget is spent: only high-priority work starts now."
            await notify(transaction, text, channel=settings.channel, now=now, zone=zone)
        await save_if_changed(transaction, record, budget)
        return budget

    return await run_transaction(bus, act)
