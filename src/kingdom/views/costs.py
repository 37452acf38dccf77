"""The JSON of costs."""

from datetime import date

import msgspec

from kingdom.court.status import MoneySummary


class DayCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one day has cost, in dollars."""

    day: date
    usd: float


class NamedCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a General, a repository or a model has cost, in dollars."""

    name: str
    usd: float


class GeneralCost(NamedCost, frozen=True, kw_only=True):
    """What a General has cost, in dollars, and how many of its assignments were completed and failed."""

    completed: int
    failed: int

    @property
    def success(self) -> float | None:
        """Return the share of its assignments that were completed, or None if none has ended."""
        ended = self.completed + self.failed
        return self.completed / ended if ended else None


class MonthCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What this month has cost so far, and `forecast`, what the whole month is expected to cost.

    `forecast` is null while there is no complete day to base it on.
    """

    spent: float
    forecast: float | None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What the work of the court costs: today with its limit, this month, and the days since `since`.

    `generals`, `repositories` and `models` divide the sum of `days`; each is sorted by cost, the highest first.
    """

    today: MoneySummary
    month: MonthCosts
    since: date
    usd: float
    days: list[DayCost]
    generals: list[GeneralCost]
    repositories: list[NamedCost]
    models: list[NamedCost]
