"""Rounds of work on followed pull requests: start one at a time, and ask a person when they do not help."""

from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.bus.sequence import next_id
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import EventDispatched
from kingdom.court.documents import FOLLOWUP, Assignment, AssignmentStatus, ExternalEvent, Priority
from kingdom.court.followups.records import (
    FOLLOWUPS,
    Followup,
    FollowupMoment,
    FollowupState,
    end_followup,
    find_followup,
    log_followup,
    read_followup,
    save_followup,
)
from kingdom.court.followups.round_prompt import round_payload
from kingdom.court.followups.rules import (
    SETTLED,
    AskPerson,
    NoRound,
    StartRound,
    count_round,
    decide_round,
    describe_attempts,
    unsettled_reasons,
    why_ask_after_round,
)
from kingdom.court.king.assignments import hand_out, quota_needs, start_chat_thread, with_assignment
from kingdom.court.king.context import KING, KingContext
from kingdom.court.king.outcomes import complete_event, update_event_status
from kingdom.court.king.round_queue import (
    FOLLOWED,
    ROUND_LINE,
    EventsByEntry,
    drop_entry,
    find_hindrance,
    queue_again,
    waiting_events,
)
from kingdom.court.king.waiting_queue import end_entry, move_entry, read_entry
from kingdom.court.package import GeneralPolicy
from kingdom.court.questions import CONTINUE, STOP, WITHOUT_RUN, HumanQuestion, ask_people
from kingdom.court.records import ASSIGNMENTS, EVENTS, RESULTS
from kingdom.workflow.model.run.workflow import RUN_PREFIX

# Why an event starts no round after its followup has ended.
NOT_FOLLOWED = "the pull request is not followed any more"
# How many followups one transaction ends. The rest follow in the next one.
_ENDS_LIMIT = 50


async def start_round(
    transaction: Transaction, record: Record, now: datetime, context: KingContext
) -> Assignment | None:
    """Start a round about all events that wait for the followup of an entry. Return None if no round may start now.

    The transaction that creates the assignment also counts the round, so a crash cannot separate the two.
    """
    found = await find_followup(transaction, read_entry(record).followup)
    policy = context.follow_policy(found[1].general) if found else None
    if found is None or found[1].is_over or policy is None:
        await drop_entry(transaction, record, NOT_FOLLOWED)
        return None
    followup_record, followup = found
    if record.id not in {entry.id for entry in followup.waiting}:
        await drop_entry(transaction, record, "it waited for an earlier followup of the pull request")
        return None
    if hindrance := await find_hindrance(transaction, followup):
        await move_entry(transaction, record, ROUND_LINE, hindrance)
        return None
    waiting = await waiting_events(transaction, followup)
    decision = decide_round(followup, policy, [event for _, event in waiting.values()])
    match decision:
        case StartRound():
            return await _begin(transaction, followup_record, followup, decision, waiting, now, context)
        case NoRound(reason):
            for entry_record, _ in waiting.values():
                await drop_entry(transaction, entry_record, reason)
            await save_followup(transaction, msgspec.structs.replace(followup, waiting=()), followup_record)
        case AskPerson(reason, fewer_tests):
            for entry_record, _ in waiting.values():
                await move_entry(transaction, entry_record, ROUND_LINE, f"a person is asked: {reason}")
            # The person decides about these numbers, so another question is asked only if even fewer tests run.
            lowered = msgspec.structs.replace(followup, tests={**followup.tests, **fewer_tests})
            await _ask(transaction, followup_record, lowered, reason, now, context)
    return None


async def end_round(
    transaction: Transaction,
    assignment: Assignment,
    usd: float,
    now: datetime,
    context: KingContext,
    *,
    has_just_ended: bool,
) -> None:
    """Add the cost of a round to its followup.

    If the round has ended, queue again the events that it did not settle, and ask a person if needed.
    """
    root = await transaction.get(ASSIGNMENTS.name, assignment.root_id) if assignment.subject else None
    if root is None or root.doc["type"] != FOLLOWUP:
        return
    found = await find_followup(transaction, assignment.subject)
    if found is None:
        return
    record, followup = found
    if usd:
        followup = msgspec.structs.replace(followup, cost_usd=round(followup.cost_usd + usd, 6))
        record = await save_followup(transaction, followup, record)
    if not has_just_ended or followup.is_over:
        return
    payload = root.doc["payload"]
    heads = (payload["head"], payload.get("branch_head", ""))
    unsettled = unsettled_reasons(followup, assignment.status, payload["reasons"], heads)
    question = why_ask_after_round(followup, assignment.status, assignment.reason, unsettled)
    followup = await queue_again(transaction, followup, payload.get("events") or [], unsettled, now)
    if question and followup.state is FollowupState.OPEN and followup.assignment_id == assignment.root_id:
        await _ask(transaction, record, followup, question, now, context)
    else:
        await save_followup(transaction, followup, record)


async def answer_followup(transaction: Transaction, followup: str, event: ExternalEvent, now: datetime) -> None:
    """Apply a person's answer: grant the rounds and the budget again, or end the followup."""
    found = await find_followup(transaction, followup)
    if found is None or found[1].state is not FollowupState.WAITING:
        return
    record, waiting = found
    person, answer = str(event.payload.get("user") or "a person"), str(event.payload.get("text")).strip().lower()
    await log_followup(transaction, waiting, FollowupMoment.ANSWERED, actor=KING, answer=f"{person}: {answer}")
    if answer == STOP:
        await end_followup(transaction, record, waiting, f"{person} stopped it", at=now, actor=KING)
        return
    granted = msgspec.structs.replace(
        waiting,
        state=FollowupState.OPEN,
        reason="",
        grants=waiting.grants + 1,
        granted_at_usd=waiting.cost_usd,
        failing=(),
    )
    await save_followup(transaction, granted, record)


async def end_followups(transaction: Transaction, now: datetime, context: KingContext) -> None:
    """End followups whose time is over or whose General no longer follows pull requests. Drop their waiting events."""
    for record in await transaction.find(RecordQuery(kind=FOLLOWUPS.name, due_by=now, limit=_ENDS_LIMIT)):
        followup = read_followup(record)
        days = (followup.ends_at - followup.created_at) / timedelta(days=1)
        await _end(transaction, record, f"its {days:g} days are over", now)
    # A package that cannot be read now is not listed here, because its General may follow again.
    for general in [package.name for package in context.packages() if package.general.follow is None]:
        query = RecordQuery(kind=FOLLOWUPS.name, index="general", value=general, limit=_ENDS_LIMIT)
        for record in await transaction.find(query):
            await _end(transaction, record, f"general.yaml of {general} has no section follow", now)


async def _end(transaction: Transaction, record: Record, reason: str, now: datetime) -> None:
    """End a followup unless it has ended, and drop what waits for it."""
    followup = read_followup(record)
    for entry_record, _ in (await waiting_events(transaction, followup)).values():
        await drop_entry(transaction, entry_record, NOT_FOLLOWED)
    left = msgspec.structs.replace(followup, waiting=())
    if followup.is_over:
        await save_followup(transaction, left, record)
    else:
        await end_followup(transaction, record, left, reason, at=now, actor=KING)


async def _ask(
    transaction: Transaction, record: Record, followup: Followup, reason: str, now: datetime, context: KingContext
) -> None:
    """Ask people whether to go on. No round starts until they answer."""
    asking = msgspec.structs.replace(followup, state=FollowupState.WAITING, reason=reason)
    await save_followup(transaction, asking, record)
    await log_followup(transaction, asking, FollowupMoment.ASKED, actor=KING, reason=reason)
    package = context.package(followup.general)
    policy = package.general.policy if package else GeneralPolicy()
    default = policy.ask_default if policy.ask_default.strip().lower() in (CONTINUE, STOP) else ""
    # Without a default, an answer is useful until the followup ends.
    due_at = min(now + timedelta(hours=policy.ask_deadline_hours), followup.ends_at) if default else followup.ends_at
    question = HumanQuestion(
        id=followup.assignment_id,
        assignment_id=followup.assignment_id,
        general=followup.general,
        workflow_id=WITHOUT_RUN,
        followup=followup.id,
        text=f"May {followup.general} go on with {followup.id}? It stopped: {reason}. {describe_attempts(followup)}",
        choices=(CONTINUE, STOP),
        exact=True,
        people=policy.ask_people,
        asked_at=now,
        due_at=due_at,
        default=default,
    )
    await ask_people(transaction, question, channel=context.channel(followup.general), today=context.day(now))


async def _begin(
    transaction: Transaction,
    followup_record: Record,
    followup: Followup,
    start: StartRound,
    waiting: EventsByEntry,
    now: datetime,
    context: KingContext,
) -> Assignment:
    """Create the assignment of a round, and count the round."""
    taken = {entry_id: each for entry_id, each in waiting.items() if each[1] in start.events}
    first = next(iter(taken.values()))[1]
    assignment = Assignment(
        id=await next_id(transaction, "task", context.day(now)),
        event_id=first.id,
        target_general=followup.general,
        type=FOLLOWUP,
        payload=round_payload(followup, start, await _reports(transaction, followup)),
        priority=Priority.NORMAL,
        created_at=now,
        status=AssignmentStatus.PENDING,
        repo=followup.repo,
        subject=followup.id,
    )
    usual = quota_needs(followup.general, followup.repo, context)[-1].amount
    assignment = await hand_out(transaction, assignment, now, context, usd=min(float(usual), start.budget_usd))
    kept = {entry_id: each for entry_id, each in waiting.items() if each[1] in start.kept}
    for entry_id, (entry_record, _) in waiting.items():
        if entry_id not in taken and entry_id not in kept:
            await drop_entry(transaction, entry_record, SETTLED)
    await _end_taken(transaction, taken, assignment.id)
    run_id = f"{RUN_PREFIX}{assignment.id}"
    begun = msgspec.structs.replace(
        count_round(followup, start),
        assignment_id=assignment.id,
        workflow_id=run_id,
        runs=(*followup.runs, run_id),
        waiting=tuple(entry for entry in followup.waiting if entry.id in kept),
    )
    await save_followup(transaction, begun, followup_record)
    await log_followup(transaction, begun, FollowupMoment.ROUND, actor=KING, reasons=", ".join(start.reasons))
    dispatched = EventDispatched(event_id=first.id, assignment_id=assignment.id, target_general=followup.general)
    await log_event(transaction, dispatched, KING)
    await start_chat_thread(transaction, assignment, first, now, context)
    return assignment


async def _end_taken(transaction: Transaction, taken: EventsByEntry, assignment_id: str) -> None:
    """End the entries that a round is about. Their first event is the event of the round, the others are complete."""
    first = next(iter(taken))
    for entry_id, (record, event) in taken.items():
        await end_entry(transaction, record)
        event_record = await transaction.get(EVENTS.name, event.id)
        if event_record is None:
            continue
        given = with_assignment(event, entry_id, assignment_id)
        if entry_id == first:
            await update_event_status(transaction, event_record, given)
        else:
            await complete_event(transaction, event_record, given, FOLLOWED, f"part of {assignment_id}")


async def _reports(transaction: Transaction, followup: Followup) -> list[str]:
    """Return the reports of earlier sessions, the oldest first."""
    last = await transaction.get(ASSIGNMENTS.name, followup.assignment_id)
    result = await transaction.get(RESULTS.name, followup.assignment_id)
    earlier = last.doc["payload"].get("reports") or [] if last and last.doc["type"] == FOLLOWUP else []
    newest = str(result.doc.get("summary") or "") if result else ""
    return [*earlier, newest] if newest else [*earlier]
