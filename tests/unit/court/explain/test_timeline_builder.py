"""Build a timeline from log entries and records."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from kingdom.bus.effects.effect import Acked, Idempotency, Throttled, Unknown
from kingdom.bus.effects.ledger import Ledger
from kingdom.chronicle.catalog import CATALOG
from kingdom.court.documents import AssignmentStatus, EventStatus, Priority, Route
from kingdom.court.explain.descriptions import DESCRIBERS
from kingdom.court.explain.timeline import Moment, MomentKind, QueryOutcome, Timeline
from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.timeline_data import StrandData, TimelineData
from kingdom.court.followups.records import FollowupMoment
from kingdom.court.king.waiting_queue import WaitingEntry
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.web.pages.story import page
from kingdom.workflow.model.messages.catalog import EVENT_TYPES
from tests.unit.court.explain.pieces import (
    BEGIN,
    EVENT,
    HEARD,
    RUN,
    STEP,
    TASK,
    WORK,
    after,
    answered,
    assignment,
    begun,
    event,
    material,
)

WRITTEN: dict[str, type[msgspec.Struct]] = {
    name: struct
    for name, struct in {**CATALOG, **{kind.name: event for event, kind in EVENT_TYPES.items()}}.items()
    if name in DESCRIBERS
}


def kinds(timeline: Timeline) -> list[MomentKind]:
    return [moment.kind for moment in timeline.moments]


def the(timeline: Timeline, kind: MomentKind) -> Moment:
    (moment,) = [moment for moment in timeline.moments if moment.kind is kind]
    return moment


def test_the_decision_shows_the_rule_the_priority_and_the_waiting_time() -> None:
    decision = the(build_timeline(material(begun())), MomentKind.DECISION)
    assert (decision.who, decision.why, decision.seconds) == ("king", "its rule gen-a#1 matches, priority normal", 5.0)


def test_an_answer_has_its_duration_and_its_cost() -> None:
    log = begun()
    answered(log, 11)
    timeline = build_timeline(material(log))
    answer = the(timeline, MomentKind.QUERY)
    assert (answer.seconds, answer.cost_usd) == (3.0, 0.5)
    (work,) = timeline.strands[0].works
    assert (work.busy_seconds, work.cost_usd, timeline.cost_usd) == (3.0, 0.5, 0.5)


def test_a_late_answer_is_logged_and_charged_and_changes_nothing() -> None:
    log = begun()
    answered(log, 9, ignored="attempt 1 is over, 2 is current")
    answered(log, 11)
    timeline = build_timeline(material(log))
    late = the(timeline, MomentKind.LATE)
    assert (late.why, late.cost_usd) == ("attempt 1 is over, 2 is current", None)
    assert timeline.cost_usd == 0.5
    assert timeline.strands[0].works[0].queries[0].ended_at == after(11)


def test_a_lost_host_is_a_crash_and_the_new_placement_and_the_lookup_are_its_recovery() -> None:
    log = begun()
    log.add(20, "WorkflowDisplaced", workflowId=RUN, host="host-a", epoch=1, reason="host-a is lost")
    log.add(21, "WorkflowPlaced", workflowId=RUN, host="host-b", epoch=2)
    log.add(25, "QueryReconciled", "host-b", workId=WORK, taskId=STEP, attempt=1, finding="ANSWERED", costUsd=0.2)
    timeline = build_timeline(material(log))
    assert the(timeline, MomentKind.CRASH).why == "host-a is lost"
    recoveries = [moment.what for moment in timeline.moments if moment.kind is MomentKind.RECOVERY]
    assert recoveries[0] == "placed the run again on host-b"
    (query,) = timeline.strands[0].works[0].queries
    assert (query.outcome, query.reconciled, query.ended_at) == (QueryOutcome.ANSWERED, "ANSWERED", after(20))
    assert timeline.crashes == 1


def test_an_unanswered_query_is_shown_with_the_time_when_it_was_sent() -> None:
    timeline = build_timeline(
        material(begun(), assignments=[assignment(status=AssignmentStatus.IN_PROGRESS, ended_at=None)])
    )
    sent = the(timeline, MomentKind.QUERY)
    assert (sent.at, "attempt 1" in sent.what) == (after(8), True)
    assert timeline.strands[0].works[0].queries[0].outcome is QueryOutcome.OPEN


def test_moments_keep_the_order_of_the_store_even_if_the_clock_of_a_host_is_slow() -> None:
    log = begun()
    answered(log, 2)
    log.add(12, "WorkCompleted", workId=WORK, workflowId=RUN)
    timeline = build_timeline(material(log))
    assert kinds(timeline)[-2:] == [MomentKind.QUERY, MomentKind.WORK]
    assert timeline.strands[0].works[0].queries[0].seconds == 0.0


def test_a_run_that_continues_after_a_failure_is_one_retry_and_a_resumed_pause_is_none() -> None:
    log = begun()
    log.add(20, "WorkflowFailed", workflowId=RUN, reason="out of luck")
    log.add(28, "RolledBack", "host-a", workflowId=RUN, checkpointId="", rescueRefs=[])
    log.add(29, "WorkReset", workId=WORK, workflowId=RUN)
    log.add(30, "WorkflowResumed", "gen-a", workflowId=RUN, fromWorkId=WORK)
    log.add(40, "WorkflowPaused", workflowId=RUN)
    log.add(50, "WorkflowResumed", "anna", workflowId=RUN, fromWorkId=WORK)
    timeline = build_timeline(material(log))
    assert timeline.retries == 1
    assert (the(timeline, MomentKind.RETRY).who, the(timeline, MomentKind.RETRY).work_id) == ("gen-a", WORK)


def test_a_rollback_shows_its_target_and_what_was_kept() -> None:
    log = begun()
    log.add(30, "RolledBack", "host-a", workflowId=RUN, checkpointId=f"{RUN}-w1-c1", rescueRefs=["refs/rescue/1"])
    back = the(build_timeline(material(log)), MomentKind.CHECKPOINT)
    assert (back.what, back.why) == ("rolled back to checkpoint w1-c1", "uncommitted changes are kept: refs/rescue/1")


def test_a_question_knows_its_answer_who_gave_it_and_how_long_that_took() -> None:
    log = begun()
    log.add(10, "task.needs_human", "gen-a", task_id=TASK, question="Left or right?")
    log.add(70, "task.resumed", "king", task_id="task-20260207-002", original_task_id=TASK)
    answer: dict[str, Any] = {"text": "left", "user": "anna"}
    resumed = assignment(id="task-20260207-002", root=TASK, type="resume", payload=answer, created_at=after(70))
    timeline = build_timeline(material(log, assignments=[assignment(), resumed]))
    (question,) = timeline.strands[0].questions
    assert (question.answer, question.answered_by, question.seconds) == ("left", "anna", 60.0)
    assert the(timeline, MomentKind.ANSWER).why == "anna answered: left"
    assert timeline.strands[0].resumed_as == ("task-20260207-002",)


def test_external_calls_are_shown_where_they_were_made() -> None:
    ledger = Ledger.open("petition:p", "github", {}, "worker").record_sent(1, after(12))
    ledger = ledger.record_result(Unknown("no connection"), Idempotency.TIME)
    again = ledger.prepare_resend(2, Idempotency.TIME)
    assert again
    done = again.record_sent(2, after(40)).record_result(Acked(), Idempotency.TIME)
    petition = Petition(
        id="p",
        root=TASK,
        general="gen-a",
        workflow_id=RUN,
        kind="github.comment",
        body={},
        target="acme/app#7",
        created_at=after(10),
        state=PetitionState.PERFORMED,
    )
    log = begun()
    about = {"petition_id": "p", "task_id": TASK, "kind": "github.comment", "target": "acme/app#7"}
    log.add(10, "petition.granted", "gen-a", **about)
    log.add(41, "petition.performed", "gen-a", **about)
    timeline = build_timeline(material(log, petitions=[petition], ledgers={"p": done}))
    outside = [moment for moment in timeline.moments if moment.kind in (MomentKind.PETITION, MomentKind.EFFECT)]
    assert [moment.at for moment in outside] == [after(10), after(12), after(40), after(41)]
    assert outside[2].what == "call 2 to github for github.comment: acked"
    assert [attempt.state for attempt in timeline.strands[0].outputs[0].attempts] == ["UNKNOWN", "ACKED"]


@pytest.mark.parametrize(
    ("kind", "approve_by", "why"),
    [
        ("github.comment", after(99), "a person is asked to approve it first"),
        ("github.comment", None, "it is performed in order"),
        ("github.pull_request", None, "it needs the checkpoint after this work"),
    ],
)
def test_a_petition_that_cannot_be_performed_at_once_says_what_it_waits_for(
    kind: str, approve_by: datetime | None, why: str
) -> None:
    petition = Petition(
        id="p",
        root=TASK,
        general="gen-a",
        workflow_id=RUN,
        kind=kind,
        body={},
        target="acme/app#7",
        created_at=after(10),
        approve_by=approve_by,
    )
    log = begun()
    log.add(10, "petition.requested", "gen-a", petition_id="p", task_id=TASK, kind=kind, target="acme/app#7")
    asked = the(build_timeline(material(log, petitions=[petition])), MomentKind.PETITION)
    assert (asked.what, asked.why) == (f"queued {kind} to acme/app#7", why)


@pytest.mark.parametrize(
    ("payload", "subject"),
    [
        ({"subject_title": "Mend the\ndoor", "text": ""}, "Mend the door"),
        ({"title": " ", "text": "It squeaks."}, "It squeaks."),
        ({"title": 7}, ""),
    ],
)
def test_the_subject_of_an_event_is_the_first_nonempty_text_of_its_source(
    payload: dict[str, Any], subject: str
) -> None:
    reported = build_timeline(replace(material(begun()), event=event(payload=payload)))
    assert reported.event
    assert (reported.event.subject, the(reported, MomentKind.EVENT).why) == (subject, subject)


def test_a_hostile_title_is_text_on_the_page() -> None:
    hostile = event(payload={"title": "<script>alert(1)</script><img src=x onerror=alert(2)>"})
    text = page(build_timeline(replace(material(begun()), event=hostile)), after(700))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script" not in text
    assert "<img" not in text


def test_a_question_is_answered_if_a_person_resumed_the_run_directly() -> None:
    log = begun()
    log.add(10, "task.needs_human", "gen-a", task_id=TASK, question="Left or right?")
    log.add(70, "WorkflowResumed", "anna", workflowId=RUN, fromWorkId=WORK)
    (question,) = build_timeline(material(log)).strands[0].questions
    assert (question.answered_by, question.seconds) == ("anna", 60.0)


def test_calls_missing_from_the_ledger_are_reported() -> None:
    ledger = Ledger.open("petition:p", "github", {}, "worker")
    for fence in range(1, 31):
        ledger = ledger.record_sent(fence, after(fence)).record_result(Throttled(None), Idempotency.TIME)
    done = ledger.record_sent(31, after(31)).record_result(Acked(), Idempotency.TIME)
    timeline = build_timeline(material(begun(), petitions=[], ledgers={"p": done}))
    assert "10 of 31 calls to github are not stored, only the first and the newest are" in timeline.missing


def test_a_waiting_event_says_who_must_act_and_why() -> None:
    route = Route(general="gen-a", rule="gen-a#1", waiting="place-1")
    place = WaitingEntry(
        event_id=EVENT, general="gen-a", rule="gen-a#1", priority=Priority.LOW, since=BEGIN, reason="soldiers is full"
    )
    waiting = event(status=EventStatus.PENDING, routes=(route,))
    strand = StrandData(id="place-1", route=route, waiting=place)
    received = begun().about("event.detected")
    timeline = build_timeline(
        TimelineData(about=EVENT, event_id=EVENT, event=waiting, entries=received, strands=[strand])
    )
    (reported,) = timeline.strands
    assert (reported.status, reported.reason, reported.general, reported.priority) == (
        "waiting",
        "soldiers is full",
        "gen-a",
        "low",
    )
    assert (timeline.status, timeline.ended_at, timeline.missing) == ("waiting", None, ())


def test_an_event_for_two_generals_has_a_strand_for_each_and_ends_with_the_later_one() -> None:
    other = "task-20260207-009"
    log = begun()
    log.add(9, "event.dispatched", "king", event_id=EVENT, task_id=other, target_general="gen-b")
    answered(log, 11)
    logged = material(log)
    late = assignment(id=other, target_general="gen-b", ended_at=after(900), status=AssignmentStatus.FAILED)
    second = StrandData(id=other, assignments=[late])
    happened = event(status=EventStatus.FAILED, outcome="failed")
    timeline = build_timeline(replace(logged, about=EVENT, event=happened, strands=[*logged.strands, second]))
    assert [(strand.general, strand.waited_seconds) for strand in timeline.strands] == [("gen-a", 5.0), ("gen-b", 9.0)]
    assert (timeline.status, timeline.ended_at, timeline.cost_usd) == ("failed", after(900), 0.5)


def test_an_expired_document_is_described_from_the_log_with_a_note() -> None:
    log = begun()
    answered(log, 11)
    log.add(20, "task.completed", "gen-a", task_id=TASK, status="success", duration_seconds=9)
    gone = StrandData(id=TASK, entries=log.besides(*HEARD))
    timeline = build_timeline(TimelineData(about=EVENT, event_id=EVENT, entries=log.about(*HEARD), strands=[gone]))
    assert timeline.event
    assert (timeline.event.type, timeline.strands[0].works[0].name) == ("github.pr.comment", "w1")
    assert (timeline.ended_at, timeline.cost_usd) == (after(20), 0.5)
    assert len(timeline.missing) == 2


def test_restarts_of_roles_are_shown_only_while_they_repeat() -> None:
    log = begun()
    logged = material(log)
    for seconds in (100, 700):
        log.add(seconds, "recovery.session_restarted", "chamberlain", target="king", pid=1)
    timeline = build_timeline(replace(logged, role_entries=log.about("recovery.session_restarted")))
    assert [moment.at for moment in timeline.moments if moment.kind is MomentKind.CRASH] == [after(100)]


def test_every_described_entry_is_written_by_some_code() -> None:
    written = {
        *CATALOG,
        *(kind.name for kind in EVENT_TYPES.values()),
        *(f"petition.{each}" for each in PetitionState),
        *(f"followup.{each}" for each in FollowupMoment),
    }
    assert set(DESCRIBERS) - written == set()


@pytest.mark.parametrize("struct", WRITTEN.values(), ids=WRITTEN)
def test_every_entry_can_be_shown_by_the_fields_that_it_has(struct: type[msgspec.Struct]) -> None:
    samples = {msgspec.inspect.DictType: {}, msgspec.inspect.IntType: 1, msgspec.inspect.VarTupleType: []}
    fields = msgspec.inspect.type_info(struct)
    assert isinstance(fields, msgspec.inspect.StructType)
    data = {field.encode_name: samples.get(type(field.type), "some-text") for field in fields.fields}
    name = next(name for name, each in WRITTEN.items() if each is struct)
    log = begun()
    log.add(9, name, "somebody", **data)
    logged = [moment for moment in build_timeline(material(log)).moments if moment.who == "somebody"]
    assert len(logged) <= 1


def test_the_json_of_a_timeline_can_be_read_back() -> None:
    log = begun()
    answered(log, 11)
    timeline = build_timeline(material(log))
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=Timeline) == timeline
