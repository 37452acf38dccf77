"""Show the figures as a table and as a plot."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bench.growth.figures import CLAIM_LIMIT, CROWDED_CLAIM_LIMIT, FLAT_RATIO, Figures, Row


def print_table(figures: Figures) -> None:
    """Print every row with its bound and whether it holds."""
    table = Table(title=f"Buffers of whole statements; flat = at most {FLAT_RATIO} x those of any smaller size")
    for heading in ("statement", "growing", "buffers by size", "ratio", "bound", "holds"):
        table.add_column(heading, justify="left" if heading in {"statement", "growing"} else "right")
    for row in figures.rows.values():
        bound = " and ".join([*([f"<= {row.limit}"] if row.limit else []), *(["flat"] if row.flat else [])])
        ratio = f"{row.ratio:.2f}" if row.points else ""
        holds = "[green]yes[/]" if not row.complaints() else "[red]no[/]"
        table.add_row(row.name, row.axis, _points(row), ratio, bound or "none", holds)
    Console(width=160).print(table)


def draw_plot(figures: Figures, path: Path) -> None:
    """Plot buffers over size, on the left for growing tables, on the right for events handled while xmin is pinned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A Figure without pyplot needs no display.
    figure = Figure(figsize=(15, 8.5))
    left, right = figure.subplots(1, 2)
    for axes, pinned, title in (
        (left, False, "rows in the table"),
        (right, True, "events processed while xmin is pinned"),
    ):
        for row in figures.rows.values():
            if row.axis.startswith("events") == pinned and row.points:
                axes.plot(list(row.points), list(row.points.values()), marker="o", label=row.name)
        _label_axes(axes, title)
    left.set_xscale("log")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _label_axes(axes: Axes, title: str) -> None:
    axes.set_xlabel(title)
    axes.set_ylabel("shared buffers of the whole statement")
    axes.set_yscale("log")
    if axes.lines:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
    for limit in (CLAIM_LIMIT, CROWDED_CLAIM_LIMIT):
        axes.axhline(limit, linestyle="--", linewidth=1, color="grey")
        axes.annotate(f"{limit}", (0, limit), xycoords=("axes fraction", "data"), fontsize=8)
    axes.grid(visible=True, alpha=0.3)


def _points(row: Row) -> str:
    return "  ".join(f"{_short(size)}: {buffers:,}" for size, buffers in row.points.items())


def _short(size: int) -> str:
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)
