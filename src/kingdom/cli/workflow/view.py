"""Views of runs for a terminal."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kingdom.actions.runs import next_commands
from kingdom.bus.log import LogEntry
from kingdom.cli.framework.output import table
from kingdom.cli.framework.workflow_ids import short
from kingdom.text import format_duration, printable
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import (
    CheckpointStatus,
    ReportStatus,
    VerificationStatus,
    WorkflowStatus,
)

_COLORS = {
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
# A log line leaves out these fields: the user knows the run, and only the engine needs the others.
_HIDDEN_FIELDS = frozenset({"workflowId", "epoch", "attempt"})


def list_view(workflows: Sequence[Workflow]) -> Table:
    """Return runs as a table."""
    columns = ("id", "name", "status", "host", "works", "cost", "created", "why")
    return table(columns, [_row(workflow) for workflow in workflows])


def tree_view(workflow: Workflow, host: Host | None, now: datetime) -> Tree:
    """Return everything about a run as a tree. Durations that have not ended are counted up to now."""
    tree = Tree(_head(workflow, host, now), guide_style="dim")
    for line in _state_lines(workflow):
        tree.add(line)
    for number, work in enumerate(workflow.works, start=1):
        branch = tree.add(_work_line(workflow, number, work, now))
        for line in _errors(work, workflow.reason):
            branch.add(line)
        for task in work.tasks:
            branch.add(_task_line(workflow, task, workflow.reason))
        for petition in work.petitions:
            branch.add(_text(f"petition {petition.kind}: {_clip(_json(petition.body), _WHY_WIDTH)}", "yellow"))
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
            state = "valid" if point.id in valid else "no longer valid"
            points.add(_text(f"{short(workflow, point.id)} after {_work_name(workflow, point.work_id)}, {state}"))
    # `kingdom answer` only answers questions of assignments.
    answer = ["answer"] if workflow.question and workflow.general else []
    tree.add(_text(f"next: {', '.join([*answer, *next_commands(workflow)]) or 'nothing, it has ended'}"))
    return tree


def checkpoints_view(workflow: Workflow, points: Sequence[Checkpoint] | None = None) -> Table:
    """Return a table of checkpoints, by default all checkpoints of the run."""
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


def describe_state(workflow: Workflow) -> str:
    """Return the state of a run and its question, if any, as a sentence."""
    if workflow.deleted_at:
        return f"{workflow.id} is deleted"
    state = f"{workflow.id} is {workflow.status}"
    if workflow.stop_request:
        state += f" and about to {workflow.stop_request.outcome.verb} ({workflow.stop_request.reason})"
    if workflow.question:
        choices = f" ({' / '.join(workflow.question.choices)})" if workflow.question.choices else ""
        state += f", it asks: {workflow.question.text}{choices}"
    elif workflow.reason:
        state += f": {workflow.reason}"
    return state


def log_line(workflow: Workflow, entry: LogEntry) -> str:
    """Return a log entry of a run as a line with short ids."""
    shown = {
        name: value
        for name, value in entry.data.items()
        if value and name not in _HIDDEN_FIELDS and value != entry.actor
    }
    details = " ".join(f"{name}={_value(workflow, value)}" for name, value in shown.items())
    return f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S} {entry.type} by {entry.actor}{': ' if details else ''}{details}"


def _row(workflow: Workflow) -> tuple[object, ...]:
    done = sum(work.is_finished for work in workflow.works)
    question = f"asks: {workflow.question.text}" if workflow.question else ""
    return (
        workflow.id,
        _clip(workflow.name, _NAME_WIDTH),
        _status("DELETED" if workflow.deleted_at else workflow.status),
        workflow.placement.host if workflow.placement else None,
        f"{done}/{len(workflow.works)}",
        _money(workflow.cost_usd),
        workflow.created_at,
        _clip(question or workflow.reason, _WHY_WIDTH) or None,
    )


def _head(workflow: Workflow, host: Host | None, now: datetime) -> Text:
    state = "DELETED" if workflow.deleted_at else workflow.status
    parts = [_money(workflow.cost_usd), _duration(workflow.started_at, workflow.ended_at, now)]
    if workflow.placement:
        known = f" ({host.status})" if host else ""
        parts.insert(0, f"on {workflow.placement.host}{known}")
    return _line(f"{workflow.id} {workflow.name}", state, ", ".join(part for part in parts if part))


def _state_lines(workflow: Workflow) -> Iterable[Text]:
    """Yield the lines that explain the state of a run."""
    if workflow.earlier_session:
        how = {None: "", True: ", in its session", False: ", in a new session"}[
            workflow.works[0].agent.uses_earlier_session
        ]
        yield _text(f"continues {workflow.earlier_session.workflow_id}{how}")
    if workflow.stop_request:
        yield _text(f"about to {workflow.stop_request.outcome.verb}: {workflow.stop_request.reason}", "yellow")
    if workflow.question:
        choices = f" ({' / '.join(workflow.question.choices)})" if workflow.question.choices else ""
        yield _text(f"asks: {workflow.question.text}{choices}", "bold yellow")
    if workflow.reason and not (workflow.question and workflow.question.text == workflow.reason):
        yield _text(f"because: {workflow.reason}", "red" if workflow.status is WorkflowStatus.FAILED else "yellow")
    if workflow.host_data_lost:
        yield _text("its host and checkouts are lost: it can only resume from a checkpoint or the base", "yellow")


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


def _task_line(workflow: Workflow, task: Task, reason: str) -> Text:
    parts = [f"query {task.query.status}"]
    if task.report.status is not ReportStatus.NOT_REQUIRED:
        parts.append(f"report {task.report.status}")
    if task.query.attempt > 1:
        parts.append(f"attempt {task.query.attempt}")
    query = _clip(task.definition.query, _QUERY_WIDTH)
    errors = [each for each in (task.query.error, task.report.error) if each and each not in reason]
    return _line(short(workflow, task.id), task.status, f"{', '.join(parts)}: {query}", *errors)


def _errors(work: Work, reason: str) -> Iterable[Text]:
    """Yield the errors of a Work that the reason of its run does not contain."""
    for part, name in ((work.agent, "agent"), (work.verification, "checks"), (work.checkpointing, "checkpoint")):
        if part.error and part.error not in reason:
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
    return Text(str(status), style=_COLORS.get(str(status), "default"))


def _text(sentence: str, style: str = "") -> Text:
    return Text(printable(sentence), style=style)


def _money(amount: float) -> str:
    return f"${amount:.2f}"


def _duration(begun: datetime | None, ended: datetime | None, now: datetime | None) -> str:
    until = ended or now
    return format_duration(max(until - begun, timedelta()).total_seconds()) if begun and until else ""


def _clip(text: str, width: int) -> str:
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
