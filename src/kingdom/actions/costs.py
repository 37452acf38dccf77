"""Sum up the costs of the court, and how many of its assignments succeed."""

import calendar
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.court.king.assignments import load_current_quota
from kingdom.court.king.context import KingContext
from kingdom.court.king.costs import DayCosts, Sums, days_query, read_days
from kingdom.court.quota import MONEY
from kingdom.court.status import summarize_money
from kingdom.realm import Realm
from kingdom.views.costs import Costs, DayCost, GeneralCost, MonthCosts, NamedCost

# A forecast is based on the average of at most this many complete days before today.
_FORECAST_DAYS = 28
_NAMES_MAX = 50


async def read_costs(bus: Bus, realm: Realm, now: datetime, days: int) -> Costs:
    """Return the costs of the last days, today included."""
    async with bus.transaction() as transaction:
        return await sum_costs(transaction, realm, now, days)


def costs_query(realm: Realm, now: datetime, days: int) -> RecordQuery:
    """Return the query of `sum_costs`."""
    return days_query(_earliest(_king_context(realm).day(now), days))


async def sum_costs(transaction: Transaction, realm: Realm, now: datetime, days: int) -> Costs:
    """Return the costs of the last days. The transaction may already have run the `costs_query`."""
    king = _king_context(realm)
    today = king.day(now)
    since = today - timedelta(days=days - 1)
    _, money = await load_current_quota(transaction, MONEY, now, king)
    known = await read_days(transaction, _earliest(today, days))
    shown = [each for each in known if each.day >= since]
    return Costs(
        today=summarize_money(money, realm.chamberlain),
        month=forecast_month(known, today),
        since=since,
        usd=_dollars(sum((each.usd for each in shown), Decimal(0))),
        days=[DayCost(day=each.day, usd=_dollars(each.usd)) for each in shown],
        generals=_sum_generals(shown),
        repositories=_sum_by(shown, lambda each: each.repositories),
        models=_sum_by(shown, lambda each: each.models),
    )


def forecast_month(known: Sequence[DayCosts], today: date) -> MonthCosts:
    """Return the costs of this month so far, and a forecast for all of it.

    The forecast assumes that each remaining day costs as much as the last complete days on average.
    """
    spent = sum((each.usd for each in known if each.day >= today.replace(day=1)), Decimal(0))
    first = max(today - timedelta(days=_FORECAST_DAYS), min((each.day for each in known), default=today))
    complete = (today - first).days
    if not complete:
        return MonthCosts(spent=_dollars(spent), forecast=None)
    average = sum((each.usd for each in known if first <= each.day < today), Decimal(0)) / complete
    remaining = calendar.monthrange(today.year, today.month)[1] - today.day
    return MonthCosts(spent=_dollars(spent), forecast=_dollars(spent + average * remaining))


def _king_context(realm: Realm) -> KingContext:
    return KingContext(packages=tuple, zone=realm.zone, settings=realm.king)


def _earliest(today: date, days: int) -> date:
    """Return the first day that the sums, the month or the forecast need."""
    return min(today - timedelta(days=days - 1), today.replace(day=1), today - timedelta(days=_FORECAST_DAYS))


def _sum_generals(days: Sequence[DayCosts]) -> list[GeneralCost]:
    sums: Counter[str] = Counter()
    completed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for each in days:
        sums.update(each.generals)
        completed.update(each.completed)
        failed.update(each.failed)
    names = sorted({*sums, *completed, *failed}, key=lambda name: (-sums[name], name))
    return [
        GeneralCost(name=name, usd=_dollars(Decimal(sums[name])), completed=completed[name], failed=failed[name])
        for name in names[:_NAMES_MAX]
    ]


def _sum_by(days: Sequence[DayCosts], division: Callable[[DayCosts], Sums]) -> list[NamedCost]:
    sums: Counter[str] = Counter()
    for each in days:
        sums.update(division(each))
    return [NamedCost(name=name, usd=_dollars(Decimal(usd))) for name, usd in sums.most_common(_NAMES_MAX)]


def _dollars(usd: Decimal) -> float:
    return float(round(usd, 6))
