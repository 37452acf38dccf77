"""The figures of a run and their bounds. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

# The bounds: buffers of a claim, of a claim while many workers hold leases, and the growth of any statement.
CLAIM_LIMIT = 450
CROWDED_CLAIM_LIMIT = 700
FLAT_RATIO = 1.5


@dataclass(slots=True)
class Row:
    """The buffers of one statement by size. `limit` bounds every figure, `flat` bounds their growth.

    `axis` says what grows.
    """

    name: str
    axis: str
    limit: int | None = None
    flat: bool = True
    points: dict[int, int] = field(default_factory=dict)

    def note(self, size: int, buffers: Iterable[int]) -> None:
        """Keep the highest of several measurements at one size."""
        worst = max(buffers, default=None)
        if worst is not None:
            self.points[size] = max(worst, self.points.get(size, 0))

    @property
    def ratio(self) -> float:
        """Return the largest ratio of a figure to the figure of the same or a smaller size."""
        figures = [self.points[size] for size in sorted(self.points)]
        return max(later / max(earlier, 1) for earlier, later in combinations_with_replacement(figures, 2))

    def complaints(self) -> list[str]:
        """Describe the bounds that do not hold."""
        if self.limit is None and not self.flat:
            return []
        if len(self.points) < 2:
            return [f"{self.name}: measured at {len(self.points)} sizes, which proves nothing"]
        words = []
        largest = max(self.points.values())
        if self.limit is not None and largest > self.limit:
            words.append(f"{self.name}: {largest} buffers, at most {self.limit} are allowed")
        if self.flat and self.ratio > FLAT_RATIO:
            words.append(f"{self.name}: grows {self.ratio:.2f} times, at most {FLAT_RATIO} are allowed")
        return words

    def to_json(self) -> dict[str, Any]:
        """Return the row for the report."""
        return {
            "name": self.name,
            "axis": self.axis,
            "limit": self.limit,
            "flat": self.flat,
            "points": {str(size): buffers for size, buffers in self.points.items()},
            "ratio": round(self.ratio, 3) if self.points else None,
            "holds": not self.complaints(),
        }


class Figures:
    """Rows by name, in the order of their creation."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def row(self, name: str, axis: str, *, limit: int | None = None, flat: bool = True) -> Row:
        """Return a row, creating it if needed."""
        return self.rows.setdefault(name, Row(name, axis, limit, flat))

    def complaints(self) -> list[str]:
        """Describe every bound that does not hold."""
        return [words for row in self.rows.values() for words in row.complaints()]

    def to_json(self, **facts: Any) -> Mapping[str, Any]:
        """Return all figures as one object."""
        return {
            "bench": "growth",
            **facts,
            "rows": [row.to_json() for row in self.rows.values()],
            "failed": self.complaints(),
            "holds": not self.complaints(),
        }
