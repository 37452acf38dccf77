"""The view of a timeline for a terminal."""

from collections.abc import Iterator
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kingdom.cli.framework.output import format_duration, table
from kingdom.court.explain.timeline import Moment, MomentKind, Strand, Timeline
from kingdom.text import printable, sentence, with_reason

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


def headline(timeline: Timeline) -> str:
    """Return the subject of a timeline as one line."""
    event = timeline.event
    if event is None:
        return printable(timeline.about)
    where = f" in {event.repo}" if event.repo else ""
    subject = f": {event.subject}" if event.subject else ""
    return printable(f"{timeline.about}, {event.type}{where}{subject}")


def outcome(timeline: Timeline, now: datetime) -> str:
    """Return how a timeline ended, or its current state, as a sentence."""
    seconds = timeline.seconds
    if seconds is None and timeline.begun_at:
        took = f"for {format_duration(max((now - timeline.begun_at).total_seconds(), 0.0))} so far"
    else:
        took = f"after {format_duration(seconds)}" if seconds is not None else "for an unknown time"
    parts = [f"{timeline.status} {took}", money(timeline.cost_usd)]
    if timeline.crashes:
        parts.append(many(timeline.crashes, "crash", "crashes"))
    if timeline.retries:
        parts.append(many(timeline.retries, "retry", "retries"))
    return f"{', '.join(parts)}."


def result_of(strand: Strand) -> str:
    """Return the result of a strand, which is one assignment or run of the timeline, as a sentence."""
    who = f" by {strand.general}" if strand.general else ""
    text = with_reason(f"{strand.id}{who} is {strand.status}", strand.summary or strand.reason)
    return printable(sentence(text))


def offset(timeline: Timeline, moment: Moment) -> str:
    """Return how long after the beginning of the timeline a moment was."""
    return f"+{format_duration(max((moment.at - timeline.begun_at).total_seconds(), 0.0))}" if timeline.begun_at else ""


def money(amount: float | None) -> str:
    """Format an amount of money, or nothing for None."""
    if amount is None:
        return ""
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"  # noqa: PLR2004 - a cent


def many(count: int, one: str, more: str) -> str:
    """Return a count with its noun."""
    return f"{count} {one if count == 1 else more}"


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
