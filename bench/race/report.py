"""Show the figures as a table and as a chart."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.race.figures import LATENCY, Cell, Figures

_LINE_WIDTH = 120
_TITLE = "events per second [processor µs per event: client + server]; latency p50/p99 in ms; medians over the rounds"

PAGE_BEGINS, PAGE_ENDS = "<!-- bench.race begins -->", "<!-- bench.race ends -->"


def print_tables(figures: Figures) -> None:
    """Print every side with its columns, then every bound, every goal and the excluded sides."""
    console = Console(width=200)
    columns = figures.columns()
    table = Table("side", *columns, title=escape(_TITLE))
    for side in figures.sides():
        table.add_row(side, *(_text(figures.cells.get((side, column)), column) for column in columns))
    console.print(table)
    bounds = Table("bound or goal", "figure", "limit", "holds", title="bounds, and goals that are not required")
    for bound in figures.bounds():
        sign = "<=" if bound.at_most else ">="
        holds = "[green]yes[/]" if bound.holds else "[red]no[/]"
        bounds.add_row(bound.name, f"{bound.value:.2f}", f"{sign} {bound.limit:.2f}", holds)
    for goal in figures.goals():
        bounds.add_row(goal.name, f"{goal.value:.2f}", f"goal {goal.limit:.2f}", "yes" if goal.holds else "not yet")
    console.print(bounds)
    for side, reason in figures.absent.items():
        console.print(f"{side} is excluded: {reason}", markup=False)


def fill_page(figures: Figures, page: Path, about: str, chart: Path | None) -> None:
    """Replace the figures between the two marks of a Markdown page."""
    before, begins, rest = page.read_text().partition(PAGE_BEGINS)
    _, ends, after = rest.partition(PAGE_ENDS)
    if not begins or not ends:
        raise ValueError(f"{page} has no lines {PAGE_BEGINS} and {PAGE_ENDS}")
    columns = figures.columns()
    sides = [
        (f"`{side}`", *(_text(figures.cells.get((side, column)), column) for column in columns))
        for side in figures.sides()
    ]
    limits = [
        (
            bound.name,
            f"{bound.value:.2f}",
            f"{'at most' if bound.at_most else 'at least'} {bound.limit:.2f}",
            "yes" if bound.holds else "**no**",
        )
        for bound in figures.bounds()
    ]
    parts = [
        fill(f"{about}: {_TITLE}.", _LINE_WIDTH),
        _markdown(("Side", *columns), sides),
        _markdown(("Bound", "Figure", "Limit", "Holds"), limits),
        *([f"![The rates of all sides]({chart.relative_to(page.parent)})"] if chart else []),
        *(f"`{side}` was not there: {reason}" for side, reason in figures.absent.items()),
    ]
    page.write_text("\n\n".join([f"{before}{begins}", *parts, f"{ends}{after}"]))


def _markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows))


def draw_chart(figures: Figures, path: Path) -> None:
    """Draw the rates of all sides, with one group of axes per column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns, sides = figures.columns(), figures.sides()
    # A Figure without pyplot needs no display.
    figure = Figure(figsize=(14, 0.9 + (len(columns) + 1) // 2 * (0.9 + 0.32 * len(sides))))
    axes = figure.subplots((len(columns) + 1) // 2, 2, squeeze=False).flat
    for place, column in zip(axes, columns, strict=False):
        _draw_column(place, figures, column)
    for place in list(axes)[len(columns) :]:
        place.set_visible(False)
    figure.suptitle(_TITLE, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(path, dpi=110)


def _draw_column(axes: Axes, figures: Figures, column: str) -> None:
    cells = {side: figures.cells[side, column] for side in figures.sides() if (side, column) in figures.cells}
    values = [_value(cell, column) for cell in cells.values()]
    colors = ["tab:blue" if side.startswith("kingdom") else "tab:grey" for side in cells]
    bars = axes.barh(list(cells), values, color=colors)
    axes.bar_label(bars, [_text(cell, column) for cell in cells.values()], padding=3, fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.45)
    axes.set_title(
        f"{column}, ms (less is better)" if column == LATENCY else f"{column}, events per second", fontsize=9
    )
    axes.tick_params(labelsize=8)


def _value(cell: Cell, column: str) -> float:
    return cell.p50_ms or 0.0 if column == LATENCY else cell.rate


def _text(cell: Cell | None, column: str) -> str:
    if cell is None:
        return "-"
    cost = f"[{cell.client_us:,.0f} + {cell.server_us:,.0f}]"
    if column == LATENCY:
        return f"{cell.p50_ms:.1f}/{cell.p99_ms:.1f} {cost}"
    return f"{cell.rate:,.0f} {cost}"
