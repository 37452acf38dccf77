"""The figures of a run and their bounds. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

# The bounds: the speed as a share of the bare loop and as a multiple of other queues, the growth of a claim, and the
# latency of a wake-up as a multiple of a bare loop.
SHARE_OF_BARE = 0.6
AHEAD_OF_PEERS = 1.0
CLAIM_GROWTH = 1.5
WAKE_UP_MULTIPLE = 3.0
# A publish syncs only the journal.
SYNCS_OF_A_PUBLISH = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run with its bounds."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    def complaint(self) -> str | None:
        """Describe the bound that does not hold, or return None."""
        if self.at_least is not None and not self.value >= self.at_least:
            return f"{self.name}: {self.value:.2f}, but must be at least {self.at_least:g}"
        if self.at_most is not None and not self.value <= self.at_most:
            return f"{self.name}: {self.value:.2f}, but must be at most {self.at_most:g}"
        return None

    @property
    def bound(self) -> str:
        """Return the bound as text."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    def to_json(self) -> dict[str, Any]:
        """Return the figure for the report."""
        row = {"name": self.name, "value": round(self.value, 3)}
        return {**row, "bound": self.bound, "holds": self.complaint() is None} if self.bound else row


@dataclass(slots=True)
class Figures:
    """All figures of a run with notes. `demand` makes every bound stricter or less strict."""

    demand: float = 1.0
    all: list[Figure] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Add a figure."""
        least = None if at_least is None else at_least * self.demand
        most = None if at_most is None else at_most / self.demand
        self.all.append(Figure(name, value, least, most))

    def complaints(self) -> list[str]:
        """Describe every bound that does not hold. A run without any bound proves nothing."""
        if not any(figure.bound for figure in self.all):
            return ["nothing was measured that has a bound"]
        return list(self._complaints())

    def to_json(self, **facts: Any) -> dict[str, Any]:
        """Return everything as one object."""
        failed = self.complaints()
        rows = [figure.to_json() for figure in self.all]
        return {"bench": "files", **facts, **self.facts, "figures": rows, "failed": failed, "holds": not failed}

    def table(self, title: str) -> Table:
        """Return all figures with their bounds as a table."""
        table = Table("what", "figure", "bound", "holds", title=title)
        for figure in self.all:
            holds = "" if not figure.bound else "[red]no[/]" if figure.complaint() else "[green]yes[/]"
            table.add_row(figure.name, f"{figure.value:,.2f}", figure.bound, holds)
        return table

    def _complaints(self) -> Iterator[str]:
        for figure in self.all:
            if words := figure.complaint():
                yield words
