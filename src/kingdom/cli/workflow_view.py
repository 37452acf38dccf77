"""How runs look to a person; every word of it is from the store."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kingdom.bus.log import LogEntry
from kingdom.cli.output import ago, table
from kingdom.cli.workflow_id import short
from kingdom.text import printable
from kingdom.workflow.model.checkpoint import Checkpoint
from kingdom.workflow.model.host import Host
from kingdom.workflow.model.machine import (
    CheckpointStatus,
    ReportStatus,
    VerificationStatus,
    WorkflowStatus,
    allowed_operations,
)
from kingdom.workflow.model.work import Task, Work
from kingdom.workflow.model.workflow import Workflow

# What people can ask for by a command; the others are asked for by the engine and the court.
_COMMANDS = ("prepare", "start", "pause", "resume", "cancel", "modify", "release", "delete")
_COLOURS = {
    "COMPLETED": "green",
    "READY": "green",
    "RUNNING": "cyan",
    "PREPARING": "cyan",
    "RESUMING": "cyan",
    "AWAITING": "yellow",
    "PAUSED": "yellow",
    "FAILED": "red",
    "ERROR": "red",
    "LOST": "red",
    "CANCELLED": "magenta",
}
_NAME_WIDTH = 40
_WHY_WIDTH = 60
_QUERY_WIDTH = 60
# A line stands below its run; which placement and attempt it answers for matters to the engine only.
_NOISE = frozenset({"workflowId", "epoch", "attempt"})


def list_view(workflows: Sequence[Workflow]) -> Table:
    """Return runs as a table."""
    columns = ("id", "name", "status", "host", "works", "cost", "created", "why")
    return table(columns, [_row(workflow) for workflow in workflows])


def tree_view(workflow: Workflow, host: Host | None, now: datetime) -> Tree:
    """Return everything about a run; durations of what goes on are counted up to now."""
    tree = Tree(_head(workflow, host, now), guide_style="dim")
    for line in _situation(workflow):
        tree.add(line)
    for number, work in enumerate(workflow.works, start=1):
        branch = tree.add(_work_line(workflow, number, work, now))
        for line in _errors(work, workflow.reason):
            branch.add(line)
        for task in work.tasks:
            branch.add(_task_line(workflow, task, workflow.reason))
        for petition in work.petitions:
            branch.add(_text(f"petition {petition.kind}: {_clipped(_json(petition.body), _WHY_WIDTH)}", "yellow"))
    if workflow.work_trees:
        checkouts = tree.add("checkouts")
        for each in workflow.work_trees:
            where = f"{each.ref.git_id}, branch {each.branch} from {each.ref.base_branch}"
            error = "" if each.error in workflow.reason else each.error
            checkouts.add(_line(short(workflow, each.id), each.status, where, error))
    if workflow.checkpoints:
        points = tree.add("checkpoints")
        valid = {each.id for each in workflow.valid_checkpoints()}
        for point in workflow.checkpoints:
            state = "valid" if point.id in valid else "not valid any more"
            points.add(_text(f"{short(workflow, point.id)} after {_work_name(workflow, point.work_id)}, {state}"))
    # Only who asks in the name of an assignment is answered by `kingdom answer`.
    answer = ["answer"] if workflow.question and workflow.general else []
    tree.add(_text(f"next: {', '.join([*answer, *next_commands(workflow)]) or 'nothing, it is over'}"))
    return tree


def checkpoints_view(workflow: Workflow, points: Sequence[Checkpoint] | None = None) -> Table:
    """Return the points of a run that one could return to, or only some of them."""
    valid = {each.id for each in workflow.valid_checkpoints()}
    rows = [
        (
            short(workflow, point.id),
            _work_name(workflow, point.work_id),
            "\n".join(f"{_git_of(workflow, tree)} {commit[:12]}" for tree, commit in point.commits.items()),
            "yes" if point.id in valid else "no",
            point.created_at,
        )
        for point in (workflow.checkpoints if points is None else points)
    ]
    return table(("checkpoint", "after", "commits", "valid", "taken"), rows)


def next_commands(workflow: Workflow) -> list[str]:
    """Return the commands that the state of a run allows."""
    if workflow.deleted_at:
        return []
    return [each for each in allowed_operations(workflow.status) if each in _COMMANDS]


def standing(workflow: Workflow) -> str:
    """Return in a sentence where a run stands, and what it wants of a person."""
    if workflow.deleted_at:
        return f"{workflow.id} is deleted"
    said = f"{workflow.id} is {workflow.status}"
    if workflow.wanted:
        said += f" and about to {workflow.wanted.wish.lower()} ({workflow.wanted.reason})"
    if workflow.question:
        choices = f" ({' / '.join(workflow.question.choices)})" if workflow.question.choices else ""
        said += f", it asks: {workflow.question.text}{choices}"
    elif workflow.reason:
        said += f": {workflow.reason}"
    return said


def log_line(workflow: Workflow, entry: LogEntry) -> str:
    """Return one line of the history of a run, with short ids."""
    told = {name: value for name, value in entry.data.items() if value and name not in _NOISE and value != entry.actor}
    details = " ".join(f"{name}={_value(workflow, value)}" for name, value in told.items())
    return f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S} {entry.type} by {entry.actor}{': ' if details else ''}{details}"


def _row(workflow: Workflow) -> tuple[object, ...]:
    done = sum(work.is_finished for work in workflow.works)
    question = f"asks: {workflow.question.text}" if workflow.question else ""
    return (
        workflow.id,
        _clipped(workflow.name, _NAME_WIDTH),
        _status("DELETED" if workflow.deleted_at else workflow.status),
        workflow.placement.host if workflow.placement else None,
        f"{done}/{len(workflow.works)}",
        _money(workflow.cost_usd),
        workflow.created_at,
        _clipped(question or workflow.reason, _WHY_WIDTH) or None,
    )


def _head(workflow: Workflow, host: Host | None, now: datetime) -> Text:
    state = "DELETED" if workflow.deleted_at else workflow.status
    parts = [_money(workflow.cost_usd), _duration(workflow.started_at, workflow.ended_at, now)]
    if workflow.placement:
        known = f" ({host.status})" if host else ""
        parts.insert(0, f"on {workflow.placement.host}{known}")
    return _line(f"{workflow.id} {workflow.name}", state, ", ".join(part for part in parts if part))


def _situation(workflow: Workflow) -> Iterable[Text]:
    """Yield why a run stands where it stands."""
    if workflow.wanted:
        yield _text(f"about to {workflow.wanted.wish.lower()}: {workflow.wanted.reason}", "yellow")
    if workflow.question:
        choices = f" ({' / '.join(workflow.question.choices)})" if workflow.question.choices else ""
        yield _text(f"asks: {workflow.question.text}{choices}", "bold yellow")
    if workflow.reason and not (workflow.question and workflow.question.text == workflow.reason):
        yield _text(f"because: {workflow.reason}", "red" if workflow.status is WorkflowStatus.FAILED else "yellow")
    if workflow.uprooted:
        yield _text("its host is lost with its checkouts: only a checkpoint or the base can be gone on from", "yellow")


def _work_line(workflow: Workflow, number: int, work: Work, now: datetime) -> Text:
    parts = [
        f"attempt {work.agent.attempt}" if work.agent.attempt else "",
        f"agent {work.agent.status}" if work.agent.alive else "",
        f"checks {work.verification.status}" if work.verification.status is VerificationStatus.RUNNING else "",
        f"checkpoint {work.checkpointing.status}" if work.checkpointing.status is CheckpointStatus.TAKING else "",
        _money(work.cost_usd) if work.cost_usd else "",
        _duration(work.started_at, work.ended_at, now if workflow.status is WorkflowStatus.RUNNING else None),
        "asks a person afterwards" if work.definition.pause_after else "",
    ]
    name = f"{number}. {work.definition.name} ({short(workflow, work.id)})"
    return _line(name, work.status, ", ".join(part for part in parts if part))


def _task_line(workflow: Workflow, task: Task, told: str) -> Text:
    parts = [f"query {task.query.status}"]
    if task.report.status is not ReportStatus.NOT_REQUIRED:
        parts.append(f"report {task.report.status}")
    if task.query.attempt > 1:
        parts.append(f"attempt {task.query.attempt}")
    query = _clipped(task.definition.query, _QUERY_WIDTH)
    errors = [each for each in (task.query.error, task.report.error) if each and each not in told]
    return _line(short(workflow, task.id), task.status, f"{', '.join(parts)}: {query}", *errors)


def _errors(work: Work, told: str) -> Iterable[Text]:
    """Yield what went wrong with a Work, but for what the run says of itself."""
    for part, name in ((work.agent, "agent"), (work.verification, "checks"), (work.checkpointing, "checkpoint")):
        if part.error and part.error not in told:
            yield _text(f"{name}: {part.error}", "red")


def _line(name: str, status: str, rest: str, *errors: str) -> Text:
    line = Text.assemble(printable(name), " ", _status(status))
    if rest:
        line.append(f" {printable(rest)}", "dim")
    for error in errors:
        if error:
            line.append(f"\n{printable(error)}", "red")
    return line


def _status(status: str) -> Text:
    return Text(str(status), style=_COLOURS.get(str(status), "default"))


def _text(sentence: str, style: str = "") -> Text:
    return Text(printable(sentence), style=style)


def _money(amount: float) -> str:
    return f"${amount:.2f}"


def _duration(begun: datetime | None, ended: datetime | None, now: datetime | None) -> str:
    until = ended or now
    return ago(max(until - begun, timedelta()).total_seconds()) if begun and until else ""


def _clipped(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _work_name(workflow: Workflow, work_id: str) -> str:
    work = workflow.find_work(work_id)
    return f"{work.definition.name} ({short(workflow, work_id)})" if work else f"{short(workflow, work_id)}, removed"


def _git_of(workflow: Workflow, tree_id: str) -> str:
    tree = workflow.find_tree(tree_id)
    return tree.ref.git_id if tree else short(workflow, tree_id)


def _value(workflow: Workflow, value: object) -> str:
    if isinstance(value, str):
        return short(workflow, value)
    return _json(value).replace(f'"{workflow.id}-', '"')


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
