"""Build a timeline from the gathered data. This module does no I/O."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from kingdom.bus.log import LogEntry, LoggedEntry
from kingdom.court.documents import title_of
from kingdom.court.explain.descriptions import DescriptionContext, describe
from kingdom.court.explain.spans import has_effect, questions_of, short_id, works_of
from kingdom.court.explain.timeline import (
    EffectAttempt,
    EventOrigin,
    Moment,
    MomentKind,
    PetitionOutput,
    QueryOutcome,
    Strand,
    Timeline,
    seconds_between,
)
from kingdom.court.explain.timeline_data import StrandData, TimelineData
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.model.status import WORKFLOW

WAITING = "waiting"
GONE = "gone"


class _StrandEntry(NamedTuple):
    """A log entry, its strand if it has one, and what its description needs."""

    logged: LoggedEntry
    strand: Strand | None
    names: DescriptionContext


def build_timeline(data: TimelineData) -> Timeline:
    """Return the timeline of the gathered data."""
    subject = title_of(data.event.payload) if data.event else ""
    waiting_since = next((each.entry.at for each in data.entries if each.entry.type == "event.detected"), None)
    strands = [(each, _strand(each, data, waiting_since)) for each in data.strands]
    event_names = _event_context(data, subject)
    by_id = {strand.id: strand for _, strand in strands}
    strand_entries = [
        _StrandEntry(each, by_id.get(str(each.entry.data.get("task_id"))), event_names) for each in data.entries
    ]
    for strand_data, strand in strands:
        names = _strand_context(strand_data)
        strand_entries += [_StrandEntry(logged, strand, names) for logged in strand_data.entries]
    ended_at = _ended_at(data, [strand for _, strand in strands])
    begun_at = min((each.logged.entry.at for each in strand_entries), default=None)
    strand_entries += [
        _StrandEntry(logged, None, event_names)
        for logged in data.role_entries
        if _is_within(logged, begun_at, ended_at)
    ]
    moments = _in_order(
        strand_entries,
        [moment for strand_data, strand in strands for moment in _moments_from_records(strand_data, strand)],
    )
    return Timeline(
        about=data.about,
        event=_origin(data, subject),
        status=_status(data, [strand for _, strand in strands]),
        begun_at=begun_at,
        ended_at=ended_at,
        seconds=seconds_between(begun_at, ended_at),
        cost_usd=round(sum(strand.cost_usd for _, strand in strands), 6),
        crashes=sum(moment.kind is MomentKind.CRASH for moment in moments),
        retries=sum(moment.kind is MomentKind.RETRY for moment in moments),
        strands=tuple(strand for _, strand in strands),
        moments=tuple(moments),
        missing=tuple(_find_missing(data)),
    )


def _strand(strand_data: StrandData, data: TimelineData, waiting_since: datetime | None) -> Strand:
    entries = [logged.entry for logged in strand_data.entries]
    root = strand_data.assignments[0] if strand_data.assignments else None
    current = strand_data.assignments[-1] if strand_data.assignments else None
    run, route, waiting = strand_data.workflow, strand_data.route, strand_data.waiting
    works = works_of(run, entries)
    cost = run.cost_usd if run else sum(work.cost_usd for work in works)
    dispatched = _dispatched_at(data, strand_data.id)
    run_ended_at = run.ended_at if run and run.status in WORKFLOW.final else None
    return Strand(
        id=strand_data.id,
        general=(root.target_general if root else "")
        or (run.general if run else "")
        or (route.general if route else ""),
        rule=route.rule if route else "",
        priority=str(root.priority) if root else (str(waiting.priority) if waiting else ""),
        resumed_as=tuple(each.id for each in strand_data.assignments[1:]),
        workflow_id=run.id if run else (root.workflow_id if root else ""),
        status=_strand_status(strand_data),
        reason=(current.reason if current else "")
        or (waiting.reason if waiting else "")
        or (run.reason if run else ""),
        summary=str((strand_data.result or {}).get("summary", "")),
        waited_seconds=seconds_between(waiting_since, dispatched),
        begun_at=root.started_at if root else (run.started_at if run else None),
        ended_at=root.ended_at if root else (run_ended_at or _reported_at(entries)),
        cost_usd=round(cost, 6),
        works=works,
        questions=questions_of(entries, strand_data.assignments, from_court=_is_from_court(strand_data)),
        outputs=tuple(_outputs(strand_data)),
        followups=tuple(strand_data.followups),
    )


def _strand_status(strand_data: StrandData) -> str:
    if strand_data.assignments:
        return str(strand_data.assignments[-1].status)
    if strand_data.route and strand_data.route.waiting:
        return WAITING
    return str(strand_data.workflow.status) if strand_data.workflow else GONE


def _outputs(strand_data: StrandData) -> Iterator[PetitionOutput]:
    for petition in strand_data.petitions:
        ledger = strand_data.ledgers.get(petition.id)
        attempts = ledger.document.attempts if ledger else ()
        yield PetitionOutput(
            id=petition.id,
            kind=petition.kind,
            target=petition.target,
            state=str(petition.state),
            reason=petition.reason,
            attempts=tuple(
                EffectAttempt(number=each.number, state=each.state, sent_at=each.sent_at, note=each.note)
                for each in attempts
            ),
        )


def _in_order(strand_entries: Sequence[_StrandEntry], record_moments: Sequence[Moment]) -> list[Moment]:
    """Return all moments in order: those of log entries in log order, `record_moments` by their time.

    The clocks of two machines may differ slightly, so an entry counts as no earlier than the entry before it.
    """
    placed: list[tuple[datetime, Moment]] = [(moment.at, moment) for moment in record_moments]
    latest: datetime | None = None
    failed: set[str] = set()
    for each in sorted(strand_entries, key=lambda each: each.logged.cursor):
        entry = each.logged.entry
        latest = max(latest, entry.at) if latest else entry.at
        moment = _moment(each, entry)
        name = each.strand.id if each.strand else ""
        if moment and entry.type == "WorkflowResumed" and name in failed:
            moment = msgspec.structs.replace(moment, kind=MomentKind.RETRY, why="it had failed")
            failed.discard(name)
        elif entry.type == "WorkflowFailed":
            failed.add(name)
        if moment:
            placed.append((latest, moment))
    return [moment for _, moment in sorted(placed, key=lambda each: each[0])]


def _moment(each: _StrandEntry, entry: LogEntry) -> Moment | None:
    description = describe(entry, each.names)
    if description is None:
        return None
    seconds, cost = _duration_and_cost(each.strand, entry)
    return Moment(
        at=entry.at,
        kind=description.kind,
        who=entry.actor,
        what=description.what,
        why=description.why,
        strand=each.strand.id if each.strand else "",
        work_id=str(entry.data.get("workId") or entry.data.get("fromWorkId") or ""),
        seconds=seconds,
        cost_usd=cost,
    )


def _duration_and_cost(strand: Strand | None, entry: LogEntry) -> tuple[float | None, float | None]:
    """Return the duration and the cost of the step that an entry ends."""
    if strand is None or not has_effect(entry):
        return None, None
    cost = entry.data.get("costUsd")
    if entry.type == "WorkCompleted":
        work = next((each for each in strand.works if each.id == entry.data["workId"]), None)
        return (seconds_between(work.started_at, entry.at), work.cost_usd) if work else (None, None)
    if entry.type == "event.dispatched":
        return strand.waited_seconds, None
    if entry.type == "task.resumed":
        return next((each.seconds for each in strand.questions if each.answered_at == entry.at), None), None
    queries = [query for work in strand.works for query in work.queries if query.task_id == entry.data.get("taskId")]
    seconds = next((query.seconds for query in queries if query.ended_at == entry.at), None)
    return (seconds if cost is not None else None), cost


def _moments_from_records(strand_data: StrandData, strand: Strand) -> Iterator[Moment]:
    """Yield moments that no log entry shows: calls to outside systems, and prompts that are open or interrupted."""
    for output in strand.outputs:
        target = strand_data.ledgers[output.id].document.target if output.id in strand_data.ledgers else ""
        for attempt in output.attempts:
            if attempt.sent_at:
                what = f"call {attempt.number} to {target} for {output.kind}: {attempt.state.lower()}"
                kind = MomentKind.EFFECT
                yield Moment(at=attempt.sent_at, kind=kind, who=target, what=what, why=attempt.note, strand=strand.id)
    for work in strand.works:
        for query in work.queries:
            if query.reconciled or query.outcome in (QueryOutcome.LOST, QueryOutcome.OPEN):
                what = f"sent a query of {work.name}: {short_id(query.task_id)}, attempt {query.attempt}"
                yield Moment(
                    at=query.sent_at, kind=MomentKind.QUERY, who="engine", what=what, strand=strand.id, work_id=work.id
                )


def _event_context(data: TimelineData, subject: str) -> DescriptionContext:
    rules = {
        route.assignment_id: route.rule for route in (data.event.routes if data.event else ()) if route.assignment_id
    }
    assignments = {each.id: each for strand in data.strands for each in strand.assignments}
    return DescriptionContext(rules=rules, subject=subject, assignments=assignments)


def _strand_context(strand_data: StrandData) -> DescriptionContext:
    run = strand_data.workflow
    return DescriptionContext(
        works={work.id: work.definition.name for work in run.works} if run else {},
        gits={tree.id: tree.ref.git_id for tree in run.work_trees} if run else {},
        assignments={each.id: each for each in strand_data.assignments},
        approvals={each.id for each in strand_data.petitions if each.approve_by},
        from_court=_is_from_court(strand_data),
    )


def _is_from_court(strand_data: StrandData) -> bool:
    """Return whether a strand belongs to an assignment, not to a run that a person started."""
    return bool(strand_data.assignments) or strand_data.workflow is None or strand_data.workflow.requester != ""


def _origin(data: TimelineData, subject: str) -> EventOrigin | None:
    event = data.event
    if event is None:
        facts = next((each.entry.data for each in data.entries if each.entry.type == "event.detected"), None)
        return EventOrigin(id=data.event_id, type=facts["event_type"], source=facts["source"]) if facts else None
    return EventOrigin(
        id=event.id,
        type=event.type,
        source=event.source,
        repo=event.repo,
        subject=subject,
        priority=str(event.priority),
        created_at=event.created_at,
        status=str(event.status),
        outcome=event.outcome,
        reason=event.reason,
    )


def _status(data: TimelineData, strands: Sequence[Strand]) -> str:
    if len(strands) == 1:
        return strands[0].status
    return (data.event.outcome or str(data.event.status)) if data.event else GONE


def _ended_at(data: TimelineData, strands: Sequence[Strand]) -> datetime | None:
    if data.event and data.event.status not in EVENTS.final and not _is_narrower(data, strands):
        return None
    ends = [strand.ended_at for strand in strands]
    if not ends and data.event and data.event.status in EVENTS.final:
        return max((each.entry.at for each in data.entries), default=None)
    known = [end for end in ends if end]
    return max(known) if known and len(known) == len(ends) else None


def _is_narrower(data: TimelineData, strands: Sequence[Strand]) -> bool:
    """Return whether the timeline is about one ended assignment rather than its whole event."""
    return data.about != data.event_id and all(strand.status in ASSIGNMENTS.final for strand in strands)


def _is_within(logged: LoggedEntry, begun_at: datetime | None, ended_at: datetime | None) -> bool:
    at = logged.entry.at
    return begun_at is not None and at >= begun_at and (ended_at is None or at <= ended_at)


def _dispatched_at(data: TimelineData, assignment_id: str) -> datetime | None:
    return next(
        (
            each.entry.at
            for each in data.entries
            if each.entry.type == "event.dispatched" and each.entry.data.get("task_id") == assignment_id
        ),
        None,
    )


def _reported_at(entries: Sequence[LogEntry]) -> datetime | None:
    return next((entry.at for entry in entries if entry.type in ("task.completed", "task.failed")), None)


def _find_missing(data: TimelineData) -> Iterator[str]:
    if data.event_id and data.event is None:
        yield f"the event {data.event_id} is no longer stored: its details are from the log"
    if data.event_id and not data.entries:
        yield f"the log no longer has {data.event_id}"
    for strand_data in data.strands:
        if strand_data.route and strand_data.route.waiting:
            continue
        if _is_from_court(strand_data) and not strand_data.assignments:
            yield f"the assignment {strand_data.id} is no longer stored: its event and answers are unknown"
        if strand_data.workflow is None and any(each.workflow_id for each in strand_data.assignments):
            yield f"the run of {strand_data.id} is not stored: the names of its works are unknown"
        if not strand_data.entries:
            yield f"the log no longer has {strand_data.id}"
        for ledger in strand_data.ledgers.values():
            made = ledger.latest.number
            if left_out := made - len(ledger.document.attempts):
                calls = f"{left_out} of {made} calls to {ledger.document.target}"
                yield f"{calls} are not stored, only the first and the newest are"
