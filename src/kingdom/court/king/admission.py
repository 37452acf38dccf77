"""Admission: turn waiting entries into assignments while there is room. An entry whose quota is full waits for it."""

from dataclasses import dataclass, field
from datetime import datetime

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment
from kingdom.court.king.admission_rules import (
    AdmissionRule,
    SlotLimit,
    budget_rule,
    health_rule,
    slot_limit,
    strictest_rule,
)
from kingdom.court.king.assignments import (
    QuotaNeed,
    create_assignment,
    load_current_quota,
    quota_needs,
    with_current_limit,
)
from kingdom.court.king.context import KingContext
from kingdom.court.king.rounds import start_round
from kingdom.court.king.waiting_queue import (
    ANSWER,
    READY,
    WAITING_ENTRIES,
    line_of,
    line_query,
    move_entry,
    read_entry,
)
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS, WANTED, full_reason, read_quota, save_quota
from kingdom.court.records import CURRENT, EVENTS
from kingdom.workflow.records import each_record

# After about this many entries, a call of `admit` stops, so that its transaction stays short. The timers continue.
EXAMINED_MAX = 20
_PAGE = 5
_HEALTH = "health"
# The records that decide how much new work may start.
ADMISSION_RECORDS = ((_HEALTH, CURRENT), (QUOTAS.name, MONEY), (QUOTAS.name, SOLDIERS))


@dataclass(slots=True)
class AdmissionResult:
    """The result of one call of `admit`: the new assignments, and how many entries it examined."""

    assignments: list[Assignment] = field(default_factory=list)
    examined: int = 0

    @property
    def has_more(self) -> bool:
        """Return whether the call stopped at its limit, so that another call may admit more."""
        return self.examined >= EXAMINED_MAX


async def admit(transaction: Transaction, now: datetime, context: KingContext) -> AdmissionResult:
    """Create assignments from waiting entries, as far as health, budget and slots allow."""
    await transaction.read_ahead(ADMISSION_RECORDS)
    done = AdmissionResult()
    await _admit_answers(transaction, done, now, context)
    rule = await current_rule(transaction, now, context)
    limit = await current_slot_limit(transaction, context)
    while not done.has_more and await _has_slot(transaction, limit, now, context):
        await _make_ready(transaction, rule, now, context)
        page = await transaction.find(line_query(READY, _PAGE))
        if not page or not rule.admits(read_entry(page[0]).rank, now):
            break
        for record in page:
            if not rule.admits(read_entry(record).rank, now) or not await _has_slot(transaction, limit, now, context):
                break
            done.examined += 1
            await _admit_or_queue(transaction, record, done, now, context)
    return done


async def current_rule(transaction: Transaction, now: datetime, context: KingContext) -> AdmissionRule:
    """Return the strictest admission rule at this moment."""
    health = await transaction.get(_HEALTH, CURRENT)
    _, money = await load_current_quota(transaction, MONEY, now, context)
    machine_rule = health_rule(health.doc if health else None, now, context.settings)
    return strictest_rule(machine_rule, budget_rule(money, context.settings))


async def current_slot_limit(transaction: Transaction, context: KingContext) -> SlotLimit:
    """Return how many assignments may run at once at this moment."""
    health = await transaction.get(_HEALTH, CURRENT)
    return slot_limit(health.doc if health else None, context.settings)


def missing_general_line(general: str) -> str:
    """Return the line of entries that wait because their General has no package."""
    return f"absent:{general}"


async def release_returned_generals(transaction: Transaction, context: KingContext) -> int:
    """Find Generals that have a package again, and make their entries ready. Return the number of these entries."""
    freed = 0
    for package in context.packages():
        for record in await transaction.find(line_query(missing_general_line(package.name), EXAMINED_MAX)):
            await move_entry(transaction, record, READY)
            freed += 1
    return freed


async def _admit_answers(transaction: Transaction, done: AdmissionResult, now: datetime, context: KingContext) -> None:
    """Resume assignments that a person has answered. They need budget, but no slot, and skip the admission rules."""
    async for record in each_record(transaction, line_query(ANSWER)):
        if done.has_more:
            return
        entry = read_entry(record)
        money = quota_needs(entry.general, entry.repo, context, entry.usd)[-1]
        if await _is_full(transaction, money, now, context):
            continue
        done.examined += 1
        if assignment := await create_assignment(transaction, record, now, context):
            done.assignments.append(assignment)


async def _admit_or_queue(
    transaction: Transaction, record: Record, done: AdmissionResult, now: datetime, context: KingContext
) -> None:
    """Admit an entry, or move it to the line of a quota that is full. The caller has checked that there is a slot."""
    entry = read_entry(record)
    if entry.followup:
        # An earlier entry of the same page may have taken this one into its round.
        current = await transaction.get(WAITING_ENTRIES.name, record.id)
        if current is None or line_of(current) != READY:
            return
    if context.package(entry.general) is None:
        line = missing_general_line(entry.general)
        await move_entry(transaction, record, line, f"there is no General {entry.general} now")
        return
    wanted = quota_needs(entry.general, entry.repo, context)
    own = [(QUOTAS.name, need.scope) for need in wanted if need.scope not in (SOLDIERS, MONEY)]
    await transaction.read_ahead([*own, (EVENTS.name, entry.event_id)])
    full = [need.scope for need in wanted if await _is_full(transaction, need, now, context)]
    if not full:
        create = start_round if entry.followup else create_assignment
        if assignment := await create(transaction, record, now, context):
            done.assignments.append(assignment)
        return
    # Writing the quota here conflicts with a concurrent release, so the release cannot miss the waiting entry.
    quota_record, quota = await load_current_quota(transaction, full[0], now, context)
    await save_quota(transaction, quota, quota_record, wanted=True)
    await move_entry(transaction, record, full[0], full_reason(full[0]))


async def _has_slot(transaction: Transaction, limit: SlotLimit, now: datetime, context: KingContext) -> bool:
    _, soldiers = await load_current_quota(transaction, SOLDIERS, now, context)
    return limit.allows(soldiers)


async def _is_full(transaction: Transaction, need: QuotaNeed, now: datetime, context: KingContext) -> bool:
    _, quota = await load_current_quota(transaction, need.scope, now, context)
    return not quota.fits(need.amount)


async def _make_ready(transaction: Transaction, rule: AdmissionRule, now: datetime, context: KingContext) -> None:
    """For each quota with room, make the first entry that waits for it ready again."""
    async for record in each_record(transaction, RecordQuery(kind=QUOTAS.name, index="parked", value=WANTED)):
        quota = with_current_limit(read_quota(record.doc), now, context)
        if not quota.room:
            continue
        waiting = await transaction.find(line_query(quota.scope, 1))
        if not waiting:
            await save_quota(transaction, quota, record, wanted=False)
            continue
        entry = read_entry(waiting[0])
        amount = dict(quota_needs(entry.general, entry.repo, context)).get(quota.scope)
        if rule.admits(entry.rank, now) and (amount is None or quota.fits(amount)):
            await move_entry(transaction, waiting[0], READY)
