"""Turn a snapshot into rows of text. This module does no I/O, so that tests need no screen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kingdom.bus.operations import COUNT_LIMIT
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.chamberlain.health import HealthLevel, describe_reason
from kingdom.court.followups.summary import describe_followup, describe_rounds
from kingdom.court.questions import WITHOUT_RUN, HumanQuestion
from kingdom.court.status import COUNT_MAX, CourtStatus, count_noun, count_text
from kingdom.text import plain
from kingdom.top.store_client import TopSnapshot
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus

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
    HealthLevel.GREEN: GOOD,
    HealthLevel.YELLOW: ATTENTION,
    HealthLevel.ORANGE: BAD,
    HealthLevel.RED: BAD,
    TokenStatus.OK: GOOD,
    TokenStatus.WARNING: ATTENTION,
    TokenStatus.CRITICAL: BAD,
    HostStatus.UP: GOOD,
    HostStatus.LOST: BAD,
}


class Pane(StrEnum):
    """The panes of the screen, shown one at a time."""

    RUNS = "runs"
    QUEUES = "queues"
    INBOX = "inbox"
    HEALTH = "health"
    FOLLOWUPS = "followups"


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text on one line, without control characters or markup."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneRow:
    """One line of a pane. `full_text` is the whole text, because cells can be cut off.

    `run` is the id of its run, `explain_id` the id for `kingdom explain`, `ask` its open question.
    """

    key: str
    cells: tuple[Cell, ...]
    full_text: str = ""
    run: str = ""
    explain_id: str = ""
    stream: str = ""
    ask: HumanQuestion | None = None

    def matches(self, text: str) -> bool:
        """Return whether the row contains every word of a filter."""
        own = " ".join([self.key, *(cell.text for cell in self.cells), self.full_text]).casefold()
        return all(word in own for word in text.casefold().split())


@dataclass(frozen=True, slots=True)
class Column:
    """A column with a fixed width, or with a weight by which it shares the remaining width."""

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
        Column("waiting", 7),
        Column("running", 7),
        Column("dead", 5),
        Column("oldest", 7),
        Column("note", weight=1),
    ),
    Pane.INBOX: (
        Column("id", 20),
        Column("since", 5),
        Column("until", 6),
        Column("question", weight=3),
        Column("choices", weight=1),
    ),
    Pane.HEALTH: (Column("what", 22), Column("state", 14), Column("more", weight=1)),
    Pane.FOLLOWUPS: (
        Column("pull request", 20),
        Column("state", 7),
        Column("rounds", weight=2),
        Column("cost", 6),
        Column("until", 5),
        Column("why", weight=3),
    ),
}
_COLUMN_WIDTH_MIN = 6
# Texts are cut to this many characters, more than a line shows. This keeps a refresh of a thousand rows fast.
_TEXT_MAX = 500


def fit_columns(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column on a screen of this width. One space separates two columns."""
    remaining = max(width - sum(column.width for column in columns) - len(columns), 0)
    weights = sum(column.weight for column in columns) or 1
    return [column.width or max(remaining * column.weight // weights, _COLUMN_WIDTH_MIN) for column in columns]


def shorten(text: object) -> str:
    """Return the beginning of a text as one plain line."""
    return plain(str(text)[:_TEXT_MAX])


def build_rows(pane: Pane, snapshot: TopSnapshot) -> list[PaneRow]:
    """Return the rows of a pane."""
    return list(_ROWS[pane](snapshot))


def build_headline(status: CourtStatus) -> list[Cell]:
    """Return the health level and its reason."""
    health = status.health
    reason = plain(describe_reason(health.reason)) or "nothing is wrong"
    age = f", read {format_span(health.age_seconds)} ago" if health.age_seconds is not None else ""
    return [
        Cell("● ", style_of(health.level)),
        Cell(plain(health.level), style_of(health.level)),
        Cell(f" {reason}{age}"),
    ]


def build_summary(snapshot: TopSnapshot) -> list[Cell]:
    """Return today's cost, the slots, and the numbers of questions, undecided and waiting events, and assignments."""
    status = snapshot.status
    money, slots = status.money, status.slots[:1]
    asks = len(snapshot.asks) + len(snapshot.asking_runs)
    return [
        Cell("today ", QUIET),
        Cell(f"${money.spent:.2f} of ${money.limit:.2f}", style_of(money.status)),
        *(part for each in slots for part in (Cell("  slots ", QUIET), Cell(f"{each.held}/{each.limit}"))),
        Cell("  questions ", QUIET),
        Cell(str(asks), ATTENTION if asks else ""),
        Cell("  events ", QUIET),
        Cell(f"{count_text(status.undecided)} undecided, {count_text(status.waiting.count)} waiting"),
        *(
            Cell(f"  {count_text(count)} {_STAGES.get(stage, stage)}")
            for stage, count in status.assignments.items()
            if count
        ),
    ]


def style_of(state: str) -> str:
    """Return the color of a state."""
    return _STYLES.get(state, "")


def format_span(seconds: float | None) -> str:
    """Return a time span in a few characters."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


_STAGES = {"in_progress": "in progress", "needs_human": "need a person"}


def _runs(snapshot: TopSnapshot) -> Iterator[PaneRow]:
    for run in snapshot.runs:
        done = sum(work.is_finished for work in run.works)
        why, style = _describe_progress(run)
        name = f"{run.general} {run.name}" if run.general else run.name
        yield PaneRow(
            key=run.id,
            run=run.id,
            explain_id=run.id,
            full_text=" · ".join(filter(None, (shorten(name), why))),
            cells=(
                Cell(shorten(run.id)),
                Cell(shorten(name)),
                Cell(run.status, style_of(run.status)),
                Cell(f"{done}/{len(run.works)}"),
                Cell(f"${run.cost_usd:.2f}"),
                Cell(_age(run.ended_at or snapshot.status.at, run.created_at)),
                Cell(why, style),
            ),
        )


def _describe_progress(run: Workflow) -> tuple[str, str]:
    """Return what a run does or waits for, and the style of this text."""
    if run.stop_request:
        return shorten(f"about to {run.stop_request.outcome.verb}: {run.stop_request.reason}"), ATTENTION
    if run.question:
        return shorten(f"asks: {run.question.text}"), ATTENTION
    if run.reason:
        return shorten(run.reason), BAD if run.status is WorkflowStatus.FAILED else ""
    work = run.current_work
    if work is None or run.status is not WorkflowStatus.RUNNING:
        return "", ""
    task = work.current_task
    return shorten(f"{work.definition.name}: {task.definition.query}" if task else work.definition.name), QUIET


def _queues(snapshot: TopSnapshot) -> Iterator[PaneRow]:
    for stream in snapshot.streams:
        troubled = bool(stream.dead or stream.paused)
        note = f"paused: {stream.paused}" if stream.paused else "dead letters: enter shows them" if stream.dead else ""
        numbers = (stream.pending, stream.processing, stream.dead)
        yield PaneRow(
            key=f"stream {stream.stream}",
            stream=stream.stream,
            full_text=shorten(note),
            cells=(
                Cell(shorten(stream.stream), BAD if troubled else ""),
                *(Cell(f"{number}+" if number >= COUNT_LIMIT else str(number)) for number in numbers),
                Cell(format_span(stream.oldest_pending_seconds) if stream.pending else ""),
                Cell(shorten(note), ATTENTION),
            ),
        )
    for reason, count in snapshot.status.waiting.by_reason.items():
        waits = shorten(reason)
        cells = (Cell("waiting events"), Cell(count_text(count)), Cell(""), Cell(""), Cell(""), Cell(waits, ATTENTION))
        yield PaneRow(key=f"waiting {reason}", full_text=f"{count_noun(count, 'event')} waiting: {waits}", cells=cells)


def _inbox(snapshot: TopSnapshot) -> Iterator[PaneRow]:
    now = snapshot.status.at
    for ask in snapshot.asks:
        who = f"{ask.general} asks ({ask.id}): " if ask.general else f"{ask.id}: "
        yield PaneRow(
            key=ask.id,
            run="" if ask.petition or ask.workflow_id == WITHOUT_RUN else ask.workflow_id,
            explain_id=ask.thread,
            ask=ask,
            full_text=shorten(f"{who}{ask.text}"),
            cells=(
                Cell(shorten(ask.id)),
                Cell(_age(now, ask.asked_at)),
                Cell(_age(ask.due_at, now)),
                Cell(shorten(ask.text), ATTENTION),
                Cell(shorten(" / ".join(ask.choices))),
            ),
        )
    for run in snapshot.asking_runs:
        if run.question:
            words = shorten(run.question.text)
            choices = Cell(shorten(" / ".join(run.question.choices)))
            cells = (Cell(shorten(run.id)), Cell(""), Cell(""), Cell(words, ATTENTION), choices)
            yield PaneRow(key=run.id, run=run.id, explain_id=run.id, full_text=words, cells=cells)


def _health(snapshot: TopSnapshot) -> Iterator[PaneRow]:
    status = snapshot.status
    for trouble in status.troubles:
        what = shorten(trouble.what)
        cells = (Cell("needs a person", BAD), Cell("!", BAD), Cell(f"{what} → {trouble.command}", ATTENTION))
        yield PaneRow(key=f"trouble {trouble.what}", full_text=f"{what} → {trouble.command}", cells=cells)
    for run_id, error in snapshot.unreadable.items():
        cells = (Cell(shorten(run_id)), Cell("unreadable", BAD), Cell(shorten(error)))
        yield PaneRow(key=f"unreadable {run_id}", full_text=shorten(error), cells=cells)
    for role in status.roles:
        state = "running" if role.is_well else "silent" if role.silent_seconds is not None else "not running"
        more = f"last heartbeat {format_span(role.silent_seconds)} ago" if role.silent_seconds is not None else ""
        cells = (Cell(f"role {role.role}"), Cell(state, GOOD if role.is_well else BAD), Cell(more))
        yield PaneRow(key=f"role {role.role}", full_text=f"{role.role}: {state}. {more}".strip(), cells=cells)
    for host in status.hosts:
        more = f"{host.busy} of {host.slots} slots are taken{'; drained, takes no new runs' if host.drained else ''}"
        cells = (Cell(shorten(f"machine {host.name}")), Cell(host.status, style_of(host.status)), Cell(more))
        yield PaneRow(key=f"host {host.name}", full_text=shorten(f"{host.name}: {more}"), cells=cells)
    for slots in status.slots:
        more = f"{slots.held} of {slots.limit} are taken"
        full = slots.held >= slots.limit
        cells = (
            Cell(shorten(f"slots {slots.scope}")),
            Cell("full" if full else "free", ATTENTION if full else GOOD),
            Cell(more),
        )
        yield PaneRow(key=f"slots {slots.scope}", full_text=shorten(f"{slots.scope}: {more}"), cells=cells)
    for parked in status.parked:
        more = shorten(f"continues in {format_span((parked.until - status.at).total_seconds())}: {parked.reason}")
        cells = (Cell(shorten(parked.workflow)), Cell("parked", ATTENTION), Cell(more))
        yield PaneRow(
            key=f"parked {parked.workflow}",
            run=parked.workflow,
            explain_id=parked.workflow,
            full_text=more,
            cells=cells,
        )


def _followups(snapshot: TopSnapshot) -> Iterator[PaneRow]:
    now, asks = snapshot.status.at, {ask.followup: ask for ask in snapshot.asks}
    for followup in snapshot.status.followups:
        rounds, why = describe_rounds(followup), shorten(describe_followup(followup))
        yield PaneRow(
            key=followup.id,
            run=followup.workflow_id,
            explain_id=followup.task_id,
            ask=asks.get(followup.id),
            full_text=f"{followup.general} follows {shorten(followup.id)} ({rounds}): {why}",
            cells=(
                Cell(shorten(followup.id)),
                Cell(followup.state, ATTENTION if followup.question else GOOD),
                Cell(rounds),
                Cell(f"${followup.cost_usd:.2f}"),
                Cell(_age(followup.ends_at, now)),
                Cell(why, ATTENTION if followup.question else ""),
            ),
        )


_ROWS: Mapping[Pane, Callable[[TopSnapshot], Iterator[PaneRow]]] = {
    Pane.RUNS: _runs,
    Pane.QUEUES: _queues,
    Pane.INBOX: _inbox,
    Pane.HEALTH: _health,
    Pane.FOLLOWUPS: _followups,
}


def _age(until: datetime, since: datetime) -> str:
    return format_span(max(until - since, timedelta()).total_seconds())


def format_count(rows: Sequence[PaneRow], *, is_truncated: bool = False) -> str:
    """Return the number of rows, with a plus sign if there may be more."""
    return f"{len(rows)}+" if is_truncated or len(rows) >= COUNT_MAX else str(len(rows))
