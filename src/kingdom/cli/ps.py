"""`kingdom ps`: the runs and assignments that have not ended."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.cli.command import Call, Newest, command, undeclared
from kingdom.cli.output import ago, table
from kingdom.cli.shape import array
from kingdom.cli.watching import Watch, hidden, tell, watch
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, EventStatus
from kingdom.court.general.staff import run_of
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import DELETED, WORKFLOWS, each

app = typer.Typer(add_completion=False)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run or an assignment; `workflow_id` of an assignment is the run that does it, once there is one."""

    id: str
    kind: Literal["run", "assignment"]
    name: str
    status: str
    workflow_id: str
    since: datetime
    ended_at: datetime | None
    cost_usd: float
    why: str


class _Seen(NamedTuple):
    """What there is; where that is nothing, whether events wait."""

    entries: list[Entry]
    events_wait: bool


@command(app, "ps", answer=array(Entry))
async def ps(
    call: Call,
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    limit: Newest = 50,
    again: Watch = False,
) -> None:
    """Show the runs and assignments that have not ended, the newest last; a run stands below its assignment.

    Example: kingdom ps --watch

    JSON: an array of {id, kind, name, status, workflow_id, since, ended_at, cost_usd, why}, where kind is run or
    assignment; with --watch one per line, whenever something has changed.
    """
    async with call.bus(undeclared(), create=False) as bus:

        async def look() -> _Seen:
            async with bus.transaction() as transaction:
                entries = (await _entries(call, transaction, every=every))[-limit:]
                waiting = RecordQuery(kind=EVENTS.name, state=EventStatus.PENDING, limit=1)
                is_told = not entries and not call.output.json
                return _Seen(entries, events_wait=is_told and bool(await transaction.find(waiting)))

        def view(seen: _Seen, dropped: int = 0) -> RenderableType:
            return _view(seen.entries, events_wait=seen.events_wait, dropped=dropped)

        def newest(seen: _Seen) -> RenderableType:
            return view(seen, dropped=hidden(call.output.console, seen.entries, _view))

        def document(seen: _Seen) -> object:
            return seen.entries

        if again:
            await watch(call.output, look, newest, document)
        tell(call.output, await look(), view, document)


async def _entries(call: Call, transaction: Transaction, *, every: bool) -> list[Entry]:
    """Return what there is, each run behind the newest assignment that it does."""
    assignments = call.readable(await _records(transaction, ASSIGNMENTS, every=every), Assignment)
    runs = call.readable(await _records(transaction, WORKFLOWS, every=every), Workflow)
    groups = [(workflow.created_at, [_of_run(workflow)]) for workflow in runs]
    behind = {entries[0].id: entries for _, entries in groups}
    for assignment in sorted(assignments, key=lambda one: one.turn, reverse=True):
        entry = _of_assignment(assignment, behind)
        if entry.workflow_id in behind:
            behind[entry.workflow_id].insert(0, entry)
        else:
            groups.append((assignment.created_at, [entry]))
    return [entry for _, entries in sorted(groups, key=lambda group: group[0]) for entry in entries]


async def _records(transaction: Transaction, kind: RecordKind, *, every: bool) -> list[Record]:
    wanted = [state for state in kind.directories if state != DELETED and (every or state not in kind.final)]
    return [record for state in wanted async for record in each(transaction, RecordQuery(kind=kind.name, state=state))]


def _of_run(workflow: Workflow) -> Entry:
    asks = f"asks: {workflow.question.text}" if workflow.question else ""
    return Entry(
        id=workflow.id,
        kind="run",
        name=workflow.name,
        status=workflow.status,
        workflow_id=workflow.id,
        since=workflow.started_at or workflow.created_at,
        ended_at=workflow.ended_at,
        cost_usd=workflow.cost_usd,
        why=asks or workflow.reason,
    )


def _of_assignment(assignment: Assignment, runs: dict[str, list[Entry]]) -> Entry:
    run = run_of(assignment)
    return Entry(
        id=assignment.id,
        kind="assignment",
        name=f"{assignment.target_general}: {assignment.type}",
        status=assignment.status,
        workflow_id=run if run in runs else assignment.workflow_id,
        since=assignment.started_at or assignment.created_at,
        ended_at=assignment.ended_at,
        cost_usd=assignment.cost_usd,
        why=assignment.reason,
    )


def _view(entries: Sequence[Entry], *, events_wait: bool = False, dropped: int = 0) -> RenderableType:
    """Return the entries as a table, without the first ones that were dropped; where there is none, if events wait."""
    if not entries:
        events = ", but events wait: kingdom status" if events_wait else ""
        return Text(f"Nothing goes on{events}. What has ended: kingdom ps --all")
    now = utc_now()
    above: set[str] = set()
    rows = []
    for entry in entries[dropped:]:
        is_below = entry.kind == "run" and entry.id in above
        above.add(entry.workflow_id)
        rows.append(
            (
                f"└ {entry.id}" if is_below else entry.id,
                entry.name,
                entry.status,
                ago(((entry.ended_at or now) - entry.since).total_seconds()),
                f"${entry.cost_usd:.2f}",
                entry.why or None,
            )
        )
    older = f"{dropped} older one(s) have no room here. " if dropped else ""
    return Group(table(("id", "what", "status", "for", "cost", "why"), rows), Text(f"{older}More: kingdom show ID"))
