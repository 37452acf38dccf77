"""What the work of the court costs."""

import calendar
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

from kingdom.bus.port import Bus
from kingdom.court.king.assignments import load_current_quota
from kingdom.court.king.context import KingContext
from kingdom.court.king.costs import DayCosts, Sums, read_days
from kingdom.court.quota import MONEY
from kingdom.court.status import summarize_money
from kingdom.realm import Realm
from kingdom.views.costs import Costs, DayCost, MonthCosts, NamedCost

# A forecast is the average of at most this many complete days before today.
_FORECAST_DAYS = 28
_NAMES_MAX = 50


async def read_costs(bus: Bus, realm: Realm, now: datetime, days: int) -> Costs:
    """Return the costs of the last days, today included. It reads two records and a page."""
    king = KingContext(packages=tuple, zone=realm.zone, settings=realm.king)
    today = king.day(now)
    since = today - timedelta(days=days - 1)
    earliest = min(since, today.replace(day=1), today - timedelta(days=_FORECAST_DAYS))
    async with bus.transaction() as transaction:
        _, money = await load_current_quota(transaction, MONEY, now, king)
        known = await read_days(transaction, earliest)
    shown = [each for each in known if each.day >= since]
    return Costs(
        today=summarize_money(money, realm.chamberlain),
        month=expect_month(known, today),
        since=since,
        usd=_dollars(sum((each.usd for each in shown), Decimal(0))),
        days=[DayCost(day=each.day, usd=_dollars(each.usd)) for each in shown],
        generals=_sum_by(shown, lambda each: each.generals),
        repositories=_sum_by(shown, lambda each: each.repositories),
        models=_sum_by(shown, lambda each: each.models),
    )


def expect_month(known: Sequence[DayCosts], today: date) -> MonthCosts:
    """Return the costs of this month, and of its remaining days if they cost as much as the last complete days."""
    spent = sum((each.usd for each in known if each.day >= today.replace(day=1)), Decimal(0))
    first = max(today - timedelta(days=_FORECAST_DAYS), min((each.day for each in known), default=today))
    complete = (today - first).days
    if not complete:
        return MonthCosts(spent=_dollars(spent), forecast=None)
    average = sum((each.usd for each in known if first <= each.day < today), Decimal(0)) / complete
    remaining = calendar.monthrange(today.year, today.month)[1] - today.day
    return MonthCosts(spent=_dollars(spent), forecast=_dollars(spent + average * remaining))


def _sum_by(days: Sequence[DayCosts], division: Callable[[DayCosts], Sums]) -> list[NamedCost]:
    sums: Counter[str] = Counter()
    for each in days:
        sums.update(division(each))
    return [NamedCost(name=name, usd=_dollars(Decimal(usd))) for name, usd in sums.most_common(_NAMES_MAX)]


def _dollars(usd: Decimal) -> float:
    return float(round(usd, 6))
