"""What is told at more length than a row: a question, a queue with its dead letters, the ways on for a run."""

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from kingdom.bus.operations import DeadLetter, StreamStats
from kingdom.court.asks import Ask
from kingdom.text import plain
from kingdom.top.rows import ATTENTION, BAD, span
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.operations import Continue, FromBase, FromCheckpoint, ResumeFrom
from kingdom.workflow.model.workflow import Workflow


def question_told(ask: Ask) -> list[Text]:
    """Return all of a question: what is asked, by whom, until when, who may answer, and what happens otherwise."""
    lines = [Text(plain(line)) for line in ask.question.splitlines()] or [Text()]
    told = [
        ("choices", " / ".join(ask.choices)),
        ("asked by", ask.general),
        ("for", ask.thread),
        ("run", ask.workflow_id),
        ("asked at", _moment(ask.asked_at)),
        ("open until", _moment(ask.due_at)),
        ("may answer", ", ".join(ask.people) or "everybody"),
        ("else", ask.default),
    ]
    facts = [Text(f"{name:<11} {plain(value)}") for name, value in told if value]
    return [*lines, Text(), *facts, Text(), Text("Press q, then a to answer.", style=ATTENTION)]


def letters_told(rows: Sequence[StreamStats], letters: Sequence[DeadLetter]) -> list[Text]:
    """Return how a queue stands, and its first dead letters."""
    lines = [Text("Nothing waits here.")] if not rows else []
    for row in rows:
        oldest = f", the oldest for {span(row.oldest_pending_seconds)}" if row.pending else ""
        lines.append(Text(f"{row.pending} wait{oldest}; {row.processing} in work; {row.dead} dead"))
        if row.paused:
            lines.append(Text(plain(f"It is paused: {row.paused} → kingdom bus resume {row.stream}"), style=ATTENTION))
    for letter in letters:
        lines.append(Text(plain(f"dead: {letter.event_id} {letter.type}, attempt {letter.attempt}"), style=BAD))
        lines.append(Text(plain(f"  {letter.error_code}: {letter.error_message}")))
        lines.append(Text(plain(f"  kingdom bus dead show {letter.event_id}"), style=ATTENTION))
    return lines


def ways_back(run: Workflow) -> list[tuple[str, ResumeFrom]]:
    """Return where a run can go on, what loses the least first."""
    ways: list[tuple[str, ResumeFrom]] = []
    if run.status in (WorkflowStatus.PAUSED, WorkflowStatus.AWAITING) and not run.uprooted:
        ways.append(("in the same session", Continue()))
    for point in reversed(run.valid_checkpoints()):
        work = run.find_work(point.work_id)
        name = work.definition.name if work else point.work_id
        label = f"{point.id.removeprefix(f'{run.id}-')} after {name}, taken {_moment(point.created_at)}"
        ways.append((label, FromCheckpoint(point.id)))
    return [*ways, ("from the beginning, with nothing but the base branches", FromBase())]


def _moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
