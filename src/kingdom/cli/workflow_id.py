"""How people name a run and its parts: a beginning or an end of the id is enough, as long as it is the only one."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from kingdom.bus.port import Bus
from kingdom.bus.record import Query
from kingdom.errors import NotFound
from kingdom.workflow.model.checkpoint import Checkpoint
from kingdom.workflow.model.work import Task, Work
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import DELETED, WORKFLOWS, each

RunId = Annotated[
    str, typer.Argument(metavar="WORKFLOW", help="Its id, or where that begins or ends; `last` is the newest.")
]
LAST = "last"
_PREFIX = "wf-"
_SHOWN = 10


async def find_workflow(bus: Bus, text: str) -> Workflow:
    """Return the run that somebody means; a deleted one only by its whole id."""
    async with bus.transaction() as transaction:
        record = await transaction.get(WORKFLOWS.name, text)
        if record is None:
            records = {found.id: found async for found in each(transaction, Query(kind=WORKFLOWS.name))}
            there = {key: found.state for key, found in records.items() if found.state != DELETED}
            record = records[choose_id(text, there)]
    return Workflow.read(record.doc)


def choose_id(text: str, there: Mapping[str, str]) -> str:
    """Return the only id of these runs, given with their states, that a text can mean."""
    if text == LAST and there:
        return max(there)
    found = [each for each in there if text and (each.startswith((text, _PREFIX + text)) or each.endswith(text))]
    if not found:
        raise NotFound(f"there is no workflow {text!r}: `kingdom workflow list` shows those there are")
    if len(found) > 1:
        newest = sorted(found, reverse=True)
        named = ", ".join(f"{each} ({there[each]})" for each in newest[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise NotFound(f"{text!r} can mean {named}{more}: write more of the id")
    return found[0]


def short(workflow: Workflow, part_id: str) -> str:
    """Return the id of a part without that of its run."""
    return part_id.removeprefix(f"{workflow.id}-")


def find_work(workflow: Workflow, text: str) -> Work:
    """Return a Work by its id, its short id such as `w2`, or its name."""
    named = {work.id: work for work in workflow.works if text in {work.id, short(workflow, work.id)}}
    named = named or {work.id: work for work in workflow.works if work.definition.name == text}
    if len(named) != 1:
        raise NotFound(_unknown(workflow, "work", text, (work.id for work in workflow.works)))
    return next(iter(named.values()))


def find_task(workflow: Workflow, text: str) -> Task:
    """Return a Task by its id or its short id such as `w2-t1`."""
    tasks = [task for work in workflow.works for task in work.tasks]
    for task in tasks:
        if text in {task.id, short(workflow, task.id)}:
            return task
    raise NotFound(_unknown(workflow, "task", text, (task.id for task in tasks)))


def find_checkpoint(workflow: Workflow, text: str) -> Checkpoint:
    """Return a checkpoint, also one that is not valid any more, by its id or its short id such as `w1-c1`."""
    for checkpoint in workflow.checkpoints:
        if text in {checkpoint.id, short(workflow, checkpoint.id)}:
            return checkpoint
    raise NotFound(_unknown(workflow, "checkpoint", text, (point.id for point in workflow.checkpoints)))


def _unknown(workflow: Workflow, kind: str, text: str, ids: Iterable[str]) -> str:
    has = ", ".join(short(workflow, each) for each in ids) or "none"
    return f"workflow {workflow.id} has no single {kind} {text!r}; it has: {has}"
