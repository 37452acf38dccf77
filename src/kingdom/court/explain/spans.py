"""What took time: the Works of a run with their prompts, and the questions to people.

A prompt to an agent is called a query in the log and in the names of this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.court.documents import RESUME, Assignment
from kingdom.court.explain.timeline import QueryOutcome, QuerySpan, QuestionSpan, WorkSpan, seconds_between
from kingdom.workflow.model.run.workflow import Workflow

_ENDS = {
    "QueryResponded": QueryOutcome.ANSWERED,
    "AgentAsked": QueryOutcome.ASKED,
    "QueryFailed": QueryOutcome.FAILED,
}
# These entries interrupt the open queries. Only the transcript shows how those queries ended.
_INTERRUPTIONS = frozenset({"AgentError", "AgentStopped", "WorkflowDisplaced"})
_WORK_ENDS = frozenset({"WorkCompleted", "WorkFailed", "WorkCancelled"})
_ANSWERED = "ANSWERED"


def has_effect(entry: LogEntry) -> bool:
    """Return whether an entry changed anything."""
    return not entry.data.get("ignored")


def queries_of(entries: Iterable[LogEntry]) -> dict[str, list[QuerySpan]]:
    """Return the queries of a run in order, by the id of their Work."""
    found: dict[str, list[QuerySpan]] = {}
    for entry in filter(has_effect, entries):
        data, spans = entry.data, found.get(str(entry.data.get("workId", "")), [])
        if entry.type == "QuerySent":
            sent = QuerySpan(task_id=data["taskId"], attempt=data["attempt"], sent_at=entry.at)
            found.setdefault(data["workId"], []).append(sent)
        elif entry.type in _ENDS:
            _end_query(spans, data["taskId"], entry.at, _ENDS[entry.type], data)
        elif entry.type == "QueryReconciled":
            answered = data["finding"] == _ANSWERED
            outcome = QueryOutcome.ANSWERED if answered else QueryOutcome.LOST
            _end_query(spans, data["taskId"], entry.at, outcome, data, reconciled=str(data["finding"]))
        elif entry.type in _INTERRUPTIONS:
            for interrupted in [spans] if spans else found.values():
                _interrupt(interrupted, entry.at)
    return found


def works_of(workflow: Workflow | None, entries: Sequence[LogEntry]) -> tuple[WorkSpan, ...]:
    """Return the Works of a run. Names and statuses are known only while the run is stored."""
    queries = queries_of(entries)
    stored = {work.id: work for work in workflow.works} if workflow else {}
    spans = []
    for work_id in dict.fromkeys([*stored, *_started_works(entries), *queries]):
        asked, work = queries.get(work_id, []), stored.get(work_id)
        started, ended = _first(entries, work_id, {"WorkStarted"}), _last(entries, work_id, _WORK_ENDS)
        if work and work.status not in ("COMPLETED", "FAILED", "CANCELLED"):
            # The log may contain an end of the Work, after which the Work was undone or continued.
            ended = None
        spans.append(
            WorkSpan(
                id=work_id,
                name=work.definition.name if work else short_id(work_id),
                status=str(work.status) if work else "",
                started_at=started,
                ended_at=ended,
                seconds=seconds_between(started, ended),
                busy_seconds=round(sum(query.seconds or 0.0 for query in asked), 6),
                cost_usd=round(work.cost_usd if work else sum(query.cost_usd for query in asked), 6),
                queries=tuple(asked),
            )
        )
    return tuple(spans)


def questions_of(
    entries: Iterable[LogEntry], assignments: Sequence[Assignment], *, from_court: bool
) -> tuple[QuestionSpan, ...]:
    """Return the questions to people. Their answers are in the assignments that resumed the run.

    `from_court` is False for a run that a person started.
    """
    asked_in = "task.needs_human" if from_court else "WorkflowAwaiting"
    text_field = "question" if from_court else "reason"
    answers = {each.id: each for each in assignments if each.type == RESUME}
    questions: list[QuestionSpan] = []
    for entry in entries:
        if entry.type == asked_in:
            questions.append(QuestionSpan(question=str(entry.data.get(text_field, "")), asked_at=entry.at))
        elif questions and not questions[-1].answered_at and entry.type == "task.resumed":
            answer = answers.get(str(entry.data.get("task_id")))
            questions[-1] = _answered(questions[-1], entry.at, answer)
        elif questions and not questions[-1].answered_at and entry.type == "WorkflowResumed":
            questions[-1] = _answered(questions[-1], entry.at, None, entry.actor)
    return tuple(questions)


def answer_and_person(assignment: Assignment | None) -> tuple[str, str]:
    """Return the text of the answer that an assignment passes on, and the person who gave it."""
    payload = assignment.payload if assignment else {}
    return str(payload.get("text") or ""), str(payload.get("user") or "")


def short_id(part_id: str) -> str:
    """Return the last part of an id, such as w1 of wf-task-20260207-001-w1."""
    return part_id.rpartition("-")[2]


def _answered(asked: QuestionSpan, at: datetime, assignment: Assignment | None, actor: str = "") -> QuestionSpan:
    text, person = answer_and_person(assignment)
    seconds = seconds_between(asked.asked_at, at)
    return msgspec.structs.replace(asked, answered_at=at, answer=text, answered_by=person or actor, seconds=seconds)


def _end_query(
    spans: list[QuerySpan],
    task_id: str,
    at: datetime,
    outcome: QueryOutcome,
    data: Mapping[str, Any],
    reconciled: str = "",
) -> None:
    """Set the outcome of the latest query of a Task. A query that was LOST has an end time, which stays."""
    for index in reversed(range(len(spans))):
        span = spans[index]
        if span.task_id == task_id:
            spans[index] = msgspec.structs.replace(
                span,
                ended_at=span.ended_at if span.outcome is QueryOutcome.LOST else at,
                outcome=outcome,
                reconciled=reconciled,
                error=str(data.get("error", "")),
                cost_usd=span.cost_usd + float(data.get("costUsd") or 0.0),
            )
            return


def _interrupt(spans: list[QuerySpan], at: datetime) -> None:
    for index, span in enumerate(spans):
        if span.outcome is QueryOutcome.OPEN:
            spans[index] = msgspec.structs.replace(span, ended_at=at, outcome=QueryOutcome.LOST)


def _started_works(entries: Iterable[LogEntry]) -> list[str]:
    return [str(entry.data["workId"]) for entry in entries if entry.type == "WorkStarted"]


def _first(entries: Iterable[LogEntry], work_id: str, types: Iterable[str]) -> datetime | None:
    return next(iter(_times(entries, work_id, types)), None)


def _last(entries: Iterable[LogEntry], work_id: str, types: Iterable[str]) -> datetime | None:
    return next(iter(reversed(_times(entries, work_id, types))), None)


def _times(entries: Iterable[LogEntry], work_id: str, types: Iterable[str]) -> list[datetime]:
    return [entry.at for entry in entries if entry.type in types and entry.data.get("workId") == work_id]
