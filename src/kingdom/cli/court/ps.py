"""`kingdom ps`: list the runs and assignments that have not ended."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.actions.listings import newest_days, newest_runs_of_days
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.cli.framework.command import CommandCall, Limit, application_for_any_stream, command
from kingdom.cli.framework.json_result import array
from kingdom.cli.framework.output import table
from kingdom.cli.framework.watching import Watch, count_hidden_rows, print_state, watch
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, EventStatus
from kingdom.court.general.context import run_id_of
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.text import format_duration
from kingdom.views.processes import ProcessEntry
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import DELETED, WORKFLOWS, each_record

app = typer.Typer(add_completion=False)


class _ProcessList(NamedTuple):
    """The newest entries. `is_cut` is set if there are older ones.

    `events_wait` is set if there are no entries, events wait, and a person reads the output.
    """

    entries: list[ProcessEntry]
    events_wait: bool
    is_cut: bool


@command(app, "ps", result=array(ProcessEntry))
async def ps(
    call: CommandCall,
    *,
    every: Annotated[bool, typer.Option("--all", "-a", help="Include those that have ended.")] = False,
    limit: Limit = 50,
    repeat: Watch = False,
) -> None:
    """List the runs and assignments that have not ended, the newest last; a run is below its assignment.

    Example: kingdom ps --watch

    JSON: an array of {id, kind, name, status, workflow_id, since, ended_at, cost_usd, why}, where kind is run or
    assignment; with --watch an array per line whenever something changes.
    """
    async with call.bus(application_for_any_stream(), create=False) as bus:

        async def read() -> _ProcessList:
            async with bus.transaction() as transaction:
                found = await _entries(call, transaction, limit + 1, every=every)
                waiting = RecordQuery(kind=EVENTS.name, state=EventStatus.PENDING, limit=1)
                needs_hint = not found and not call.output.json
                events_wait = needs_hint and bool(await transaction.find(waiting))
                return _ProcessList(found[-limit:], events_wait, is_cut=len(found) > limit)

        def view(seen: _ProcessList, dropped: int = 0) -> RenderableType:
            limited_to = limit if seen.is_cut else None
            return _view(seen.entries, events_wait=seen.events_wait, limited_to=limited_to, dropped=dropped)

        def newest(seen: _ProcessList) -> RenderableType:
            return view(seen, dropped=count_hidden_rows(call.output.console, seen.entries, _view))

        def document(seen: _ProcessList) -> object:
            return seen.entries

        if repeat:
            await watch(call.output, read, newest, document)
        print_state(call.output, await read(), view, document)


async def _entries(call: CommandCall, transaction: Transaction, limit: int, *, every: bool) -> list[ProcessEntry]:
    """Return the entries by age, each run after the newest assignment that it belongs to."""
    assignments = call.readable(await _records(transaction, ASSIGNMENTS, limit, every=every), Assignment)
    runs = call.readable(await _records(transaction, WORKFLOWS, limit, every=every), Workflow)
    groups = [(workflow.created_at, [_run_entry(workflow)]) for workflow in runs]
    entries_of_run = {entries[0].id: entries for _, entries in groups}
    for assignment in sorted(assignments, key=lambda one: one.sort_key, reverse=True):
        entry = _assignment_entry(assignment, entries_of_run)
        if entry.workflow_id in entries_of_run:
            entries_of_run[entry.workflow_id].insert(0, entry)
        else:
            groups.append((assignment.created_at, [entry]))
    return [entry for _, entries in sorted(groups, key=lambda group: group[0]) for entry in entries]


async def _records(transaction: Transaction, kind: RecordKind, limit: int, *, every: bool) -> list[Record]:
    """Return all records that have not ended and, with `every`, the newest ones that have."""
    found: list[Record] = []
    for state in kind.directories:
        if state not in kind.final:
            found += [record async for record in each_record(transaction, RecordQuery(kind=kind.name, state=state))]
        elif every and kind is WORKFLOWS and state != DELETED:
            found += await newest_runs_of_days(transaction, state, limit)
        elif every and kind is ASSIGNMENTS:
            found += await newest_days(transaction, kind, limit, state=state)
    return found


def _run_entry(workflow: Workflow) -> ProcessEntry:
    asks = f"asks: {workflow.question.text}" if workflow.question else ""
    return ProcessEntry(
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


def _assignment_entry(assignment: Assignment, runs: dict[str, list[ProcessEntry]]) -> ProcessEntry:
    run = run_id_of(assignment)
    return ProcessEntry(
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


def _view(
    entries: Sequence[ProcessEntry], *, events_wait: bool = False, limited_to: int | None = None, dropped: int = 0
) -> RenderableType:
    """Return a table of the entries without the first `dropped` ones, or a hint if there are none.

    `limited_to` is the limit if there are more entries.
    """
    if not entries:
        events = ", but events wait: kingdom status" if events_wait else ""
        return Text(f"Nothing is running{events}. To see what has ended: kingdom ps --all")
    now = utc_now()
    shown_runs: set[str] = set()
    rows = []
    for entry in entries[dropped:]:
        is_below = entry.kind == "run" and entry.id in shown_runs
        shown_runs.add(entry.workflow_id)
        rows.append(
            (
                f"└ {entry.id}" if is_below else entry.id,
                entry.name,
                entry.status,
                format_duration(((entry.ended_at or now) - entry.since).total_seconds()),
                f"${entry.cost_usd:.2f}",
                entry.why or None,
            )
        )
    older = f"{dropped} older one(s) do not fit on the screen. " if dropped else ""
    if limited_to:
        older += f"Older ones are not shown: add --limit {2 * limited_to}. "
    return Group(table(("id", "what", "status", "for", "cost", "why"), rows), Text(f"{older}More: kingdom show ID"))
