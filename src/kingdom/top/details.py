"""Describe what does not fit into a row: a question, a queue with its dead letters, the resume points of a run."""

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from kingdom.bus.operations import DeadLetter, StreamStats
from kingdom.court.questions import HumanQuestion
from kingdom.text import plain
from kingdom.top.rows import ATTENTION, BAD, format_span
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue, FromBase, FromCheckpoint, ResumeFrom


def describe_question(ask: HumanQuestion) -> list[Text]:
    """Return the lines about a question: its text, its choices, its deadline, and who may answer."""
    lines = [Text(plain(line)) for line in ask.text.splitlines()] or [Text()]
    values = [
        ("choices", " / ".join(ask.choices)),
        ("asked by", ask.general),
        ("for", ask.thread),
        ("run", ask.workflow_id),
        ("asked at", _format_time(ask.asked_at)),
        ("open until", _format_time(ask.due_at)),
        ("may answer", ", ".join(ask.people) or "everyone"),
        ("default", ask.default),
    ]
    facts = [Text(f"{name:<11} {plain(value)}") for name, value in values if value]
    return [*lines, Text(), *facts, Text(), Text("To answer, press the key q and then the key a.", style=ATTENTION)]


def describe_queue(rows: Sequence[StreamStats], letters: Sequence[DeadLetter]) -> list[Text]:
    """Return the lines about a queue: its depth, whether it is paused, and its first dead letters."""
    lines = [Text("This queue is empty.")] if not rows else []
    for row in rows:
        oldest = f", the oldest for {format_span(row.oldest_pending_seconds)}" if row.pending else ""
        lines.append(Text(f"{row.pending} waiting{oldest}; {row.processing} in progress; {row.dead} dead"))
        if row.paused:
            lines.append(Text(plain(f"paused: {row.paused} → kingdom bus resume {row.stream}"), style=ATTENTION))
    for letter in letters:
        lines.append(Text(plain(f"dead: {letter.event_id} {letter.type}, attempt {letter.attempt}"), style=BAD))
        lines.append(Text(plain(f"  {letter.error_code}: {letter.error_message}")))
        lines.append(Text(plain(f"  kingdom bus dead show {letter.event_id}"), style=ATTENTION))
    return lines


def list_resume_points(run: Workflow) -> list[tuple[str, ResumeFrom]]:
    """Return the points from which a run can continue. The first point loses the least work."""
    points: list[tuple[str, ResumeFrom]] = []
    if run.status in (WorkflowStatus.PAUSED, WorkflowStatus.AWAITING) and not run.host_data_lost:
        points.append(("in the same session", Continue()))
    for checkpoint in reversed(run.valid_checkpoints()):
        work = run.find_work(checkpoint.work_id)
        name = work.definition.name if work else checkpoint.work_id
        label = f"{checkpoint.id.removeprefix(f'{run.id}-')} after {name}, taken {_format_time(checkpoint.created_at)}"
        points.append((label, FromCheckpoint(checkpoint.id)))
    return [*points, ("from the beginning, with only the base branches", FromBase())]


def _format_time(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
