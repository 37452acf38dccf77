"""Bars of charts, which the server draws as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

# A chart with more bars has no gaps between them, because a phone cannot show narrow gaps.
_BARS_WITH_GAPS = 100
_GAP_SHARE = 0.24


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar of a chart, in percent of the width and height of the chart."""

    name: str
    value: float
    x: float
    width: float
    height: float


def chart_bars(values: Sequence[tuple[str, float]]) -> list[ChartBar]:
    """Return a bar for each name and value. A value of zero has a bar without height."""
    highest = max((value for _, value in values), default=0) or 1
    step = 100 / max(len(values), 1)
    width = step * (1 - _GAP_SHARE) if len(values) <= _BARS_WITH_GAPS else step
    return [
        ChartBar(name, value, number * step, width, 100 * value / highest)
        for number, (name, value) in enumerate(values)
    ]


def minute_bars(minutes: Sequence[int]) -> list[ChartBar]:
    """Return a bar for each of the last minutes, the oldest first."""
    return chart_bars([(f"{len(minutes) - number} min ago", each) for number, each in enumerate(minutes)])


def steps_path(values: Sequence[int]) -> str:
    """Return the outline of a step chart as an SVG path, one unit wide per value and 100 units high."""
    highest = max(values, default=0) or 1
    return f"M0 100{''.join(f'V{100 - 100 * value // highest}h1' for value in values)}V100z"
