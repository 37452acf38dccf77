"""The events that wait for a round of work on a followed pull request: queue, replace, release and drop them."""

from datetime import datetime, timedelta

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.court.documents import ExternalEvent, Priority, Route
from kingdom.court.followups.records import (
    Followup,
    FollowupState,
    RoundEntry,
    RoundReason,
    find_followup,
    followup_id,
    save_followup,
)
from kingdom.court.followups.rules import (
    CHECKS_COMPLETED,
    RERUN,
    RERUN_REASON,
    checks_to_rerun,
    fewer_tests,
    is_replaced,
    reason_of,
)
from kingdom.court.king.context import KingContext
from kingdom.court.king.outcomes import complete_event
from kingdom.court.king.waiting_queue import (
    HELD,
    READY,
    WAITING,
    WAITING_ENTRIES,
    WaitingEntry,
    add_entry,
    end_entry,
    line_query,
    move_entry,
    read_entry,
)
from kingdom.court.package import FollowPolicy
from kingdom.court.records import ASSIGNMENTS, EVENTS, save
from kingdom.court.streams import check_rerun_due
from kingdom.workflow.records import each_record

# The outcome of an event that became part of a round or needed none.
FOLLOWED = "followed"
# The name that such an event shows in place of a routing rule.
RULE = "follow"
# The line of entries that wait for the end of a round or for a person.
ROUND_LINE = "round"

EventsByEntry = dict[str, tuple[Record, ExternalEvent]]


async def take_followup_event(
    transaction: Transaction, record: Record, event: ExternalEvent, now: datetime, context: KingContext
) -> bool:
    """Queue an event for the next round of its pull request, or have its checks run again. Return False otherwise."""
    number, reason = event.payload.get("number"), reason_of(event)
    if not event.repo or not isinstance(number, int) or not (reason or event.type == CHECKS_COMPLETED):
        return False
    found = await find_followup(transaction, followup_id(event.repo, number))
    if found is None or found[1].is_over:
        return False
    followup_record, known = found
    followup = await _drop_replaced(transaction, known, event)
    is_of_head = event.payload.get("commit") == followup.head
    if reason is None and is_of_head and fewer_tests(followup, [event]):
        # A check may pass because its tests were removed.
        reason = RoundReason.CHECKS
    if reason is None:
        if is_of_head:
            followup = msgspec.structs.replace(followup, failing=(), tests={})
        if followup != known:
            await save_followup(transaction, followup, followup_record)
        return False
    policy = context.follow_policy(followup.general) or FollowPolicy()
    if policy.checks.rounds and (reruns := checks_to_rerun(followup, event)):
        followup = msgspec.structs.replace(followup, rerun_head=followup.head)
        await save_followup(transaction, followup, followup_record)
        await transaction.publish(*(check_rerun_due(event.id, followup.repo, each) for each in reruns))
        await complete_event(transaction, record, event, RERUN, RERUN_REASON)
        return True
    entry = _entry(followup, event, now, "a round waits for more news")
    entry_id = await add_entry(transaction, entry, HELD, due_at=now + timedelta(seconds=policy.debounce_seconds))
    queued = msgspec.structs.replace(followup, waiting=(*followup.waiting, RoundEntry(id=entry_id, reason=reason)))
    await save_followup(transaction, queued, followup_record)
    await _save_waiting(transaction, record, event, entry_id, followup.general)
    return True


async def queue_again(
    transaction: Transaction, followup: Followup, events: list[str], reasons: tuple[RoundReason, ...], now: datetime
) -> Followup:
    """Queue again the events that a round did not settle, before newer events. Return the changed followup."""
    returned = []
    for event_id in events:
        record = await transaction.get(EVENTS.name, event_id)
        if record is None:
            continue
        event = msgspec.convert(record.doc, ExternalEvent)
        reason = reason_of(event)
        if reason is None or reason not in reasons:
            continue
        entry = _entry(followup, event, now, "the last round did not settle it")
        entry_id = await add_entry(transaction, entry, ROUND_LINE, again=True)
        await _save_waiting(transaction, record, event.as_new(), entry_id, followup.general)
        returned.append(RoundEntry(id=entry_id, reason=reason))
    return msgspec.structs.replace(followup, waiting=(*returned, *followup.waiting))


async def release_rounds(transaction: Transaction) -> int:
    """Make the entries ready whose followup has no running round and no open question. Return their number."""
    released = 0
    async for record in each_record(transaction, line_query(ROUND_LINE)):
        found = await find_followup(transaction, read_entry(record).followup)
        if found is None or not await find_hindrance(transaction, found[1]):
            await move_entry(transaction, record, READY)
            released += 1
    return released


async def find_hindrance(transaction: Transaction, followup: Followup) -> str:
    """Return why no round can start now, or ""."""
    if followup.state is FollowupState.WAITING:
        return f"a person is asked: {followup.reason}"
    last = await transaction.get(ASSIGNMENTS.name, followup.assignment_id)
    return f"{followup.assignment_id} works on it" if last and last.state not in ASSIGNMENTS.final else ""


async def waiting_events(transaction: Transaction, followup: Followup) -> EventsByEntry:
    """Return the entries that wait for a round with their events, the oldest first."""
    found = {}
    for entry in followup.waiting:
        record = await transaction.get(WAITING_ENTRIES.name, entry.id)
        if record is None or record.state != WAITING:
            continue
        event = await transaction.get(EVENTS.name, read_entry(record).event_id)
        if event is None:
            await end_entry(transaction, record)
        else:
            found[entry.id] = (record, msgspec.convert(event.doc, ExternalEvent))
    return found


async def drop_entry(transaction: Transaction, record: Record, reason: str) -> None:
    """End an entry, and complete its event without a round."""
    await end_entry(transaction, record)
    event = await transaction.get(EVENTS.name, read_entry(record).event_id)
    if event:
        dropped = msgspec.structs.replace(msgspec.convert(event.doc, ExternalEvent), routes=())
        await complete_event(transaction, event, dropped, FOLLOWED, reason)


async def _drop_replaced(transaction: Transaction, followup: Followup, event: ExternalEvent) -> Followup:
    """Drop the waiting results and conflicts that an event replaces. Return the followup without them."""
    replaced = set()
    for entry_id, (record, older) in (await waiting_events(transaction, followup)).items():
        if is_replaced(older, event, followup.head):
            await drop_entry(transaction, record, f"{event.id} is newer")
            replaced.add(entry_id)
    left = tuple(entry for entry in followup.waiting if entry.id not in replaced)
    return msgspec.structs.replace(followup, waiting=left)


def _entry(followup: Followup, event: ExternalEvent, now: datetime, reason: str) -> WaitingEntry:
    return WaitingEntry(
        event_id=event.id,
        general=followup.general,
        rule=RULE,
        priority=Priority.NORMAL,
        since=min(event.created_at, now),
        repo=event.repo,
        followup=followup.id,
        reason=reason,
    )


async def _save_waiting(
    transaction: Transaction, record: Record, event: ExternalEvent, entry_id: str, general: str
) -> None:
    routes = (Route(general=general, rule=RULE, waiting=entry_id),)
    await save(transaction, msgspec.structs.replace(event, routes=routes), record)
