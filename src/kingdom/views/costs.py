"""The JSON of costs."""

from datetime import date

import msgspec

from kingdom.court.status import MoneySummary


class DayCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one day, in dollars."""

    day: date
    usd: float


class NamedCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a General, a repository or a model, in dollars."""

    name: str
    usd: float


class GeneralCost(NamedCost, frozen=True, kw_only=True):
    """The cost of a General, in dollars, and how many of its assignments were completed and how many failed."""

    completed: int
    failed: int

    @property
    def success(self) -> float | None:
        """Return the share of its assignments that were completed, or None if none has ended."""
        ended = self.completed + self.failed
        return self.completed / ended if ended else None


class MonthCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of this month so far, and `forecast`, the expected cost of the whole month.

    `forecast` is null while there is no complete day to base it on.
    """

    spent: float
    forecast: float | None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of the court: today with the limit, this month, and each day with costs from `since` on.

    `generals`, `repositories` and `models` each split the sum of `days`, the highest cost first, at most 50 of each.
    """

    today: MoneySummary
    month: MonthCosts
    since: date
    usd: float
    days: list[DayCost]
    generals: list[GeneralCost]
    repositories: list[NamedCost]
    models: list[NamedCost]
