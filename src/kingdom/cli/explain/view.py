"""The view of a timeline for a terminal."""

from collections.abc import Iterator
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kingdom.cli.framework.output import table
from kingdom.court.explain.timeline import MomentKind, Strand, Timeline
from kingdom.court.explain.wording import headline, money, offset, outcome, result_of, state_of_followup
from kingdom.text import format_duration, printable, sentence

_STYLES = {
    MomentKind.DECISION: "cyan",
    MomentKind.QUESTION: "yellow",
    MomentKind.ANSWER: "yellow",
    MomentKind.CHECKPOINT: "green",
    MomentKind.RETRY: "magenta",
    MomentKind.FAILURE: "red",
    MomentKind.CRASH: "bold red",
    MomentKind.RECOVERY: "green",
    MomentKind.RESULT: "bold",
    MomentKind.LATE: "dim",
}


def explain_view(timeline: Timeline, now: datetime) -> RenderableType:
    """Return a whole timeline: its subject, its moments, its durations and its result."""
    parts: list[RenderableType] = [Text(headline(timeline), style="bold"), Text(outcome(timeline, now))]
    if timeline.moments:
        parts.append(_moments(timeline))
    for strand in timeline.strands:
        parts += _strand(strand, several=len(timeline.strands) > 1)
    parts += [Text(printable(sentence(f"Note: {words}")), style="yellow") for words in timeline.missing]
    return Group(*parts)


def _moments(timeline: Timeline) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("at", "", "who", "what", "took", "cost"):
        shown.add_column(name, justify="right" if name in ("", "took", "cost") else "left", overflow="fold")
    day = None
    for moment in timeline.moments:
        local = moment.at.astimezone()
        if local.date() != day:
            day = local.date()
            shown.add_row(f"{day}")
        what = Text(printable(moment.what), style=_STYLES.get(moment.kind, ""))
        if moment.why:
            what.append(f"\n{printable(moment.why)}", style="dim")
        took = format_duration(moment.seconds) if moment.seconds is not None else ""
        at = f"{local:%H:%M:%S}"
        cells = (at, offset(timeline, moment), printable(moment.who), what, took, money(moment.cost_usd or None))
        shown.add_row(*cells)
    return shown


def _strand(strand: Strand, *, several: bool) -> Iterator[RenderableType]:
    if several:
        yield Text(strand.id, style="bold")
    if strand.works:
        columns = ("work", "status", "took", "in queries", "queries", "cost")
        rows = [
            (
                work.name,
                work.status or None,
                format_duration(work.seconds) if work.seconds is not None else None,
                format_duration(work.busy_seconds),
                len(work.queries),
                money(work.cost_usd),
            )
            for work in strand.works
        ]
        yield table(columns, rows)
    yield Text(result_of(strand))
    yield from (Text(state_of_followup(followup)) for followup in strand.followups)
