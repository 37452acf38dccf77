"""Resolves the ids that people type: the beginning or end of an id is enough if it is unique."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
import typer

from kingdom.actions.listings import newest_days
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment
from kingdom.court.general.context import run_id_of, run_ids_since
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.errors import Ambiguous, NotFound
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import DELETED, WORKFLOWS, each_record

RunId = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW",
        help="The id of the run or of its assignment, or the beginning or end of the id; `last` is the newest run.",
    ),
]
LAST = "last"
# An operation that cannot be undone needs at least this many characters of an id.
MIN_ID_LENGTH = 4
_PREFIX = "wf-"
ID_PREFIXES = {EVENTS.name: "evt-", ASSIGNMENTS.name: "task-"}
_IDS_SHOWN = 10
# The search for the newest run first reads only the active runs and the stopped runs with an id of this period. An id
# can be older than its run, so the newest run found is the result only if it was created in the second half of the
# period. Otherwise all runs are read.
_RECENT = timedelta(days=28)
# The creation time of an unreadable record.
_UNKNOWN = datetime.min.replace(tzinfo=UTC)
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


async def find_workflow(bus: Bus, text: str, *, at_least: int = 0) -> Workflow:
    """Return the run with an id, or with a part of an id. A deleted run needs its whole id."""
    async with bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, text) or await _run_for(transaction, text)
        if record is None and text == LAST:
            record = await _newest(transaction)
        if record is None:
            if len(text.removeprefix(_PREFIX)) < at_least:
                raise NotFound(
                    f"{text!r} is too short to identify a run: write at least {at_least} characters of the id"
                )
            records = {found.id: found async for found in _existing_runs(transaction)}
            record = records[choose_id(text, {key: found.state for key, found in records.items()})]
    return Workflow.read(record.doc)


async def resolve_id(transaction: Transaction, kind: RecordKind, text: str) -> str:
    """Return the id of an event or assignment, given the beginning of the id. `last` is the newest one.

    A text without a match is returned unchanged. The end of an id is not enough, because the store has no index for it.
    """
    if await transaction.get(kind.name, text):
        return text
    if text == LAST:
        if kind is ASSIGNMENTS:
            found = await newest_days(transaction, kind, 1, is_wanted=lambda record: age_key(record)[0] > _UNKNOWN)
        else:
            found = [record async for record in each_record(transaction, RecordQuery(kind=kind.name))]
        return max(found, key=age_key).id if found else text
    prefix = ID_PREFIXES[kind.name]
    states: dict[str, str] = {}
    for start in (text, prefix + text):
        page = await transaction.find(RecordQuery(kind=kind.name, after=start, limit=_IDS_SHOWN + 1))
        states |= {record.id: record.state for record in page if record.id.startswith(start)}
    return choose_id(text, states, prefix=prefix) if states else text


async def _newest(transaction: Transaction) -> Record | None:
    """Return the run that was created last. Ids do not show this, because those of the court contain only a day."""
    now = utc_now()
    recent = await _latest(_recent_runs(transaction, now - _RECENT))
    if recent and age_key(recent)[0] > now - _RECENT / 2:
        return recent
    return await _latest(_existing_runs(transaction))


async def _existing_runs(transaction: Transaction) -> AsyncIterator[Record]:
    async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name)):
        if record.state != DELETED:
            yield record


async def _recent_runs(transaction: Transaction, since: datetime) -> AsyncIterator[Record]:
    """Yield every active run, and each stopped run whose id is not older than `since`."""
    ranges = run_ids_since(since)
    for state in WORKFLOWS.directories:
        stopped = state in WORKFLOWS.final or state == WorkflowStatus.FAILED
        for after, end in ranges if stopped and state != DELETED else ():
            async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name, state=state, after=after)):
                if record.id >= end:
                    break
                yield record
        if not stopped:
            async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name, state=state)):
                yield record


async def _latest(records: AsyncIterator[Record]) -> Record | None:
    newest = None
    async for record in records:
        if newest is None or age_key(record) > age_key(newest):
            newest = record
    return newest


def age_key(record: Record) -> tuple[datetime, str]:
    """Return a sort key by creation time for runs, events and assignments."""
    made = record.doc.get("createdAt") or record.doc.get("created_at")
    try:
        return msgspec.convert(made, _Moment), record.id
    except msgspec.ValidationError:
        # An unreadable record must not count as the newest.
        return _UNKNOWN, record.id


async def _run_for(transaction: Transaction, assignment_id: str) -> Record | None:
    """Return the run of an assignment. A resumed assignment continues the run of its root assignment."""
    given = await transaction.get(ASSIGNMENTS.name, assignment_id)
    if given is None:
        return None
    assignment = read_document(given.doc, Assignment)
    run = await transaction.get(WORKFLOWS.name, run_id_of(assignment))
    if run is None:
        explain = f"`kingdom explain {assignment_id}`"
        raise NotFound(f"assignment {assignment_id} is {assignment.status} and has no run: {explain}")
    return run


def choose_id(text: str, states: Mapping[str, str], *, prefix: str = _PREFIX, unknown: str = "") -> str:
    """Return the only id that begins or ends with a text. `states` has all ids with their states.

    The text may leave out `prefix`. If no id matches, `unknown` is the message of the error.
    """
    found = [each for each in states if text and (each.startswith((text, prefix + text)) or each.endswith(text))]
    if not found:
        raise NotFound(unknown or f"there is no workflow {text!r}: `kingdom workflow list` shows all")
    if len(found) > 1:
        newest = sorted(found, reverse=True)
        named = ", ".join(f"{each} ({states[each]})" for each in newest[:_IDS_SHOWN])
        more = " and more" if len(found) > _IDS_SHOWN else ""
        raise Ambiguous(f"{text!r} matches {named}{more}: write more of the id")
    return found[0]


def short(workflow: Workflow, part_id: str) -> str:
    """Return the id of a part without the prefix of its run."""
    return part_id.removeprefix(f"{workflow.id}-")


def find_work(workflow: Workflow, text: str) -> Work:
    """Return a Work by its id, its short id such as `w2`, or its name."""
    named = {work.id: work for work in workflow.works if text in {work.id, short(workflow, work.id)}}
    named = named or {work.id: work for work in workflow.works if work.definition.name == text}
    if len(named) != 1:
        raise NotFound(_not_found_text(workflow, "work", text, (work.id for work in workflow.works)))
    return next(iter(named.values()))


def find_task(workflow: Workflow, text: str) -> Task:
    """Return a Task by its id or its short id such as `w2-t1`."""
    tasks = [task for work in workflow.works for task in work.tasks]
    for task in tasks:
        if text in {task.id, short(workflow, task.id)}:
            return task
    raise NotFound(_not_found_text(workflow, "task", text, (task.id for task in tasks)))


def find_checkpoint(workflow: Workflow, text: str) -> Checkpoint:
    """Return a checkpoint by its id or its short id such as `w1-c1`. It need not be valid."""
    for checkpoint in workflow.checkpoints:
        if text in {checkpoint.id, short(workflow, checkpoint.id)}:
            return checkpoint
    raise NotFound(_not_found_text(workflow, "checkpoint", text, (point.id for point in workflow.checkpoints)))


def _not_found_text(workflow: Workflow, kind: str, text: str, ids: Iterable[str]) -> str:
    has = ", ".join(short(workflow, each) for each in ids) or "none"
    return f"workflow {workflow.id} has no unique {kind} {text!r}; it has: {has}"
