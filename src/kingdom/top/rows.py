"""What the store says as rows of text: pure, so that every word on the screen can be tested without one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kingdom.bus.operations import COUNT_LIMIT
from kingdom.court.asks import Ask
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.chamberlain.health import Level
from kingdom.court.standing import COUNT_MAX, Standing, counted, many
from kingdom.text import plain
from kingdom.top.desk import Glance
from kingdom.workflow.model.host import HostStatus
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.workflow import Workflow

GOOD, BAD, ATTENTION, BUSY, QUIET = "green", "bold red", "yellow", "cyan", "dim"
_STYLES: Mapping[str, str] = {
    WorkflowStatus.RUNNING: BUSY,
    WorkflowStatus.PREPARING: BUSY,
    WorkflowStatus.RESUMING: BUSY,
    WorkflowStatus.READY: GOOD,
    WorkflowStatus.COMPLETED: GOOD,
    WorkflowStatus.AWAITING: ATTENTION,
    WorkflowStatus.PAUSED: ATTENTION,
    WorkflowStatus.FAILED: BAD,
    WorkflowStatus.CANCELLED: QUIET,
    Level.GREEN: GOOD,
    Level.YELLOW: ATTENTION,
    Level.ORANGE: BAD,
    Level.RED: BAD,
    TokenStatus.OK: GOOD,
    TokenStatus.WARNING: ATTENTION,
    TokenStatus.CRITICAL: BAD,
    HostStatus.UP: GOOD,
    HostStatus.LOST: BAD,
}


class Pane(StrEnum):
    """The parts of the screen, one of which is shown."""

    RUNS = "runs"
    QUEUES = "queues"
    INBOX = "inbox"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text on one line, without anything that a terminal or a widget would obey."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a pane; `words` is all of what its cells may have no room for.

    `run` is the run that it is about, `about` what can be explained of it, `ask` the question that it asks.
    """

    key: str
    cells: tuple[Cell, ...]
    words: str = ""
    run: str = ""
    about: str = ""
    stream: str = ""
    ask: Ask | None = None

    def has(self, text: str) -> bool:
        """Tell whether every word that somebody looks for is in it."""
        mine = " ".join([self.key, *(cell.text for cell in self.cells), self.words]).casefold()
        return all(word in mine for word in text.casefold().split())


@dataclass(frozen=True, slots=True)
class Column:
    """A column; one without a width of its own shares what the others leave, by its weight."""

    name: str
    width: int = 0
    weight: int = 0


COLUMNS: Mapping[Pane, tuple[Column, ...]] = {
    Pane.RUNS: (
        Column("run", 20),
        Column("name", weight=1),
        Column("status", 9),
        Column("works", 5),
        Column("cost", 6),
        Column("age", 5),
        Column("why", weight=1),
    ),
    Pane.QUEUES: (
        Column("queue", 26),
        Column("waits", 6),
        Column("in work", 7),
        Column("dead", 5),
        Column("oldest", 7),
        Column("note", weight=1),
    ),
    Pane.INBOX: (
        Column("asks", 20),
        Column("since", 5),
        Column("until", 6),
        Column("question", weight=3),
        Column("choices", weight=1),
    ),
    Pane.HEALTH: (Column("what", 22), Column("state", 14), Column("more", weight=1)),
}
_WIDTH_MIN = 6
# No line is so long, and a thousand rows are made of them every second.
_TEXT_MAX = 500


def fitted(columns: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is on a screen of this width; a blank stands between two."""
    left = max(width - sum(column.width for column in columns) - len(columns), 0)
    weights = sum(column.weight for column in columns) or 1
    return [column.width or max(left * column.weight // weights, _WIDTH_MIN) for column in columns]


def brief(text: object) -> str:
    """Return the beginning of a text as one plain line."""
    return plain(str(text)[:_TEXT_MAX])


def rows_of(pane: Pane, glance: Glance) -> list[Row]:
    """Return what a pane shows."""
    return list(_ROWS[pane](glance))


def headline(standing: Standing) -> list[Cell]:
    """Return the light of the house and its reason."""
    health = standing.health
    reason = plain(health.reason) or "nothing is wrong"
    age = f", read {span(health.age_seconds)} ago" if health.age_seconds is not None else ""
    return [
        Cell("● ", style_of(health.level)),
        Cell(plain(health.level), style_of(health.level)),
        Cell(f" {reason}{age}"),
    ]


def summary(glance: Glance) -> list[Cell]:
    """Return the depths of the queues, the questions, and the money of the day."""
    standing = glance.standing
    money, slots = standing.money, standing.slots[:1]
    asks = len(glance.asks) + len(glance.asking_runs)
    going_on = standing.assignments
    return [
        Cell("today ", QUIET),
        Cell(f"${money.spent:.2f} of ${money.limit:.2f}", style_of(money.status)),
        *(part for each in slots for part in (Cell("  slots ", QUIET), Cell(f"{each.held}/{each.limit}"))),
        Cell("  asks ", QUIET),
        Cell(str(asks), ATTENTION if asks else ""),
        Cell("  events ", QUIET),
        Cell(f"{counted(standing.undecided)} undecided, {counted(standing.waiting.count)} waiting"),
        *(Cell(f"  {counted(count)} {_STAGES.get(stage, stage)}") for stage, count in going_on.items() if count),
    ]


def style_of(state: str) -> str:
    """Return the colour of a state; the word itself always stands beside it."""
    return _STYLES.get(state, "")


def span(seconds: float | None) -> str:
    """Return a span of time in a few letters."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


_STAGES = {"in_progress": "in progress", "needs_human": "need a person"}


def _runs(glance: Glance) -> Iterator[Row]:
    for run in glance.runs:
        done = sum(work.is_finished for work in run.works)
        why, style = _why(run)
        name = f"{run.general} {run.name}" if run.general else run.name
        yield Row(
            key=run.id,
            run=run.id,
            about=run.id,
            words=" · ".join(filter(None, (brief(name), why))),
            cells=(
                Cell(brief(run.id)),
                Cell(brief(name)),
                Cell(run.status, style_of(run.status)),
                Cell(f"{done}/{len(run.works)}"),
                Cell(f"${run.cost_usd:.2f}"),
                Cell(_age(run.ended_at or glance.standing.at, run.created_at)),
                Cell(why, style),
            ),
        )


def _why(run: Workflow) -> tuple[str, str]:
    """Return where a run stands and why, in a sentence."""
    if run.wanted:
        return brief(f"about to {run.wanted.wish.lower()}: {run.wanted.reason}"), ATTENTION
    if run.question:
        return brief(f"asks: {run.question.text}"), ATTENTION
    if run.reason:
        return brief(run.reason), BAD if run.status is WorkflowStatus.FAILED else ""
    work = run.current_work
    if work is None or run.status is not WorkflowStatus.RUNNING:
        return "", ""
    task = work.current_task
    return brief(f"{work.definition.name}: {task.definition.query}" if task else work.definition.name), QUIET


def _queues(glance: Glance) -> Iterator[Row]:
    for stream in glance.streams:
        troubled = bool(stream.dead or stream.paused)
        note = f"paused: {stream.paused}" if stream.paused else "dead letters: enter shows them" if stream.dead else ""
        numbers = (stream.pending, stream.processing, stream.dead)
        yield Row(
            key=f"stream {stream.stream}",
            stream=stream.stream,
            words=brief(note),
            cells=(
                Cell(brief(stream.stream), BAD if troubled else ""),
                *(Cell(f"{number}+" if number >= COUNT_LIMIT else str(number)) for number in numbers),
                Cell(span(stream.oldest_pending_seconds) if stream.pending else ""),
                Cell(brief(note), ATTENTION),
            ),
        )
    for reason, count in glance.standing.waiting.by_reason.items():
        waits = brief(f"for {reason}")
        cells = (Cell("waiting room"), Cell(counted(count)), Cell(""), Cell(""), Cell(""), Cell(waits, ATTENTION))
        yield Row(key=f"waiting {reason}", words=f"{many(count, 'event')} wait {waits}", cells=cells)


def _inbox(glance: Glance) -> Iterator[Row]:
    now = glance.standing.at
    for ask in glance.asks:
        who = f"{ask.general} asks ({ask.id}): " if ask.general else f"{ask.id}: "
        yield Row(
            key=ask.id,
            run="" if ask.petition else ask.workflow_id,
            about=ask.thread,
            ask=ask,
            words=brief(f"{who}{ask.question}"),
            cells=(
                Cell(brief(ask.id)),
                Cell(_age(now, ask.asked_at)),
                Cell(_age(ask.due_at, now)),
                Cell(brief(ask.question), ATTENTION),
                Cell(brief(" / ".join(ask.choices))),
            ),
        )
    for run in glance.asking_runs:
        if run.question:
            words = brief(run.question.text)
            choices = Cell(brief(" / ".join(run.question.choices)))
            cells = (Cell(brief(run.id)), Cell(""), Cell(""), Cell(words, ATTENTION), choices)
            yield Row(key=run.id, run=run.id, about=run.id, words=words, cells=cells)


def _health(glance: Glance) -> Iterator[Row]:
    standing = glance.standing
    for trouble in standing.troubles:
        what = brief(trouble.what)
        cells = (Cell("needs a person", BAD), Cell("!", BAD), Cell(f"{what} → {trouble.command}", ATTENTION))
        yield Row(key=f"trouble {trouble.what}", words=f"{what} → {trouble.command}", cells=cells)
    for run_id, error in glance.unreadable.items():
        cells = (Cell(brief(run_id)), Cell("unreadable", BAD), Cell(brief(error)))
        yield Row(key=f"unreadable {run_id}", words=brief(error), cells=cells)
    for role in standing.roles:
        state = "well" if role.is_well else "silent" if role.silent_seconds is not None else "does not run"
        more = f"last sign of life {span(role.silent_seconds)} ago" if role.silent_seconds is not None else ""
        cells = (Cell(f"role {role.role}"), Cell(state, GOOD if role.is_well else BAD), Cell(more))
        yield Row(key=f"role {role.role}", words=f"{role.role}: {state}. {more}".strip(), cells=cells)
    for host in standing.hosts:
        more = f"{host.busy} of {host.slots} slots are taken"
        cells = (Cell(brief(f"machine {host.name}")), Cell(host.status, style_of(host.status)), Cell(more))
        yield Row(key=f"host {host.name}", words=brief(f"{host.name}: {more}"), cells=cells)
    for slots in standing.slots:
        more = f"{slots.held} of {slots.limit} are taken"
        full = slots.held >= slots.limit
        cells = (
            Cell(brief(f"slots {slots.scope}")),
            Cell("full" if full else "free", ATTENTION if full else GOOD),
            Cell(more),
        )
        yield Row(key=f"slots {slots.scope}", words=brief(f"{slots.scope}: {more}"), cells=cells)
    for parked in standing.parked:
        more = brief(f"goes on in {span((parked.until - standing.at).total_seconds())}: {parked.reason}")
        cells = (Cell(brief(parked.workflow)), Cell("parked", ATTENTION), Cell(more))
        yield Row(key=f"parked {parked.workflow}", run=parked.workflow, about=parked.workflow, words=more, cells=cells)


_ROWS: Mapping[Pane, Callable[[Glance], Iterator[Row]]] = {
    Pane.RUNS: _runs,
    Pane.QUEUES: _queues,
    Pane.INBOX: _inbox,
    Pane.HEALTH: _health,
}


def _age(until: datetime, since: datetime) -> str:
    return span(max(until - since, timedelta()).total_seconds())


def count_of(rows: Sequence[Row], *, is_cut: bool = False) -> str:
    """Return how many rows there are, with a sign where there are more."""
    return f"{len(rows)}+" if is_cut or len(rows) >= COUNT_MAX else str(len(rows))
