"""Admission: while there is room, who waits longest by rank becomes an assignment; who needs a full quota is parked."""

from dataclasses import dataclass, field
from datetime import datetime

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment
from kingdom.court.king.assigning import Need, as_of, assign, needs, quota_now
from kingdom.court.king.gates import Gate, budget_gate, health_gate, strictest
from kingdom.court.king.terms import Terms
from kingdom.court.king.waiting import ANSWER, PLACES, READY, move_place, read_place
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS, WANTED, read_quota, save_quota
from kingdom.court.records import CURRENT, EVENTS
from kingdom.workflow.records import each

# Looked at in one call, so that a transaction stays short however many wait; the clock goes on with the rest.
LOOKS_MAX = 20
_PAGE = 5
_HEALTH = "health"


@dataclass(slots=True)
class Admission:
    """What one call made of those who wait; `has_more` where it ended before it had looked at all it could admit."""

    assignments: list[Assignment] = field(default_factory=list)
    looks: int = 0

    @property
    def has_more(self) -> bool:
        """Tell whether it is worth to call again."""
        return self.looks >= LOOKS_MAX


async def admit(transaction: Transaction, now: datetime, terms: Terms) -> Admission:
    """Make assignments of those who wait, as far as health, money and slots allow."""
    await transaction.read_ahead([(_HEALTH, CURRENT), (QUOTAS.name, MONEY), (QUOTAS.name, SOLDIERS)])
    done = Admission()
    await _admit_answers(transaction, done, now, terms)
    gate = await gate_now(transaction, now, terms)
    while not done.has_more and not await _full(transaction, Need(SOLDIERS), now, terms):
        await _wake(transaction, gate, now, terms)
        page = await transaction.find(RecordQuery(kind=PLACES.name, owner=READY, limit=_PAGE))
        if not page or not gate.admits(read_place(page[0]).rank, now):
            break
        for record in page:
            if not gate.admits(read_place(record).rank, now):
                break
            done.looks += 1
            if not await _take_or_park(transaction, record, done, now, terms):
                break
    return done


async def gate_now(transaction: Transaction, now: datetime, terms: Terms) -> Gate:
    """Return the strictest gate as it stands now."""
    health = await transaction.get(_HEALTH, CURRENT)
    _, money = await quota_now(transaction, MONEY, now, terms)
    return strictest(
        health_gate(health.doc if health else None, now, terms.settings), budget_gate(money, terms.settings)
    )


def absent_owner(general: str) -> str:
    """Return under whom those wait whose General is not there."""
    return f"absent:{general}"


async def free_absent(transaction: Transaction, terms: Terms) -> int:
    """Let those go on whose General is back; returns how many."""
    freed = 0
    for package in terms.packages():
        owner = absent_owner(package.name)
        for record in await transaction.find(RecordQuery(kind=PLACES.name, owner=owner, limit=LOOKS_MAX)):
            await move_place(transaction, record, READY)
            freed += 1
    return freed


async def _admit_answers(transaction: Transaction, done: Admission, now: datetime, terms: Terms) -> None:
    """Let those go on whom a person answered: no gate and no slot holds them, only money."""
    async for record in each(transaction, RecordQuery(kind=PLACES.name, owner=ANSWER)):
        if done.has_more:
            return
        place = read_place(record)
        money = needs(place.general, place.repo, terms, place.usd)[-1]
        if await _full(transaction, money, now, terms):
            continue
        done.looks += 1
        if assignment := await assign(transaction, record, now, terms):
            done.assignments.append(assignment)


async def _take_or_park(transaction: Transaction, record: Record, done: Admission, now: datetime, terms: Terms) -> bool:
    """Admit a place, or park it where it has to wait; False once nobody can be admitted any more."""
    place = read_place(record)
    if terms.package(place.general) is None:
        await move_place(transaction, record, absent_owner(place.general), f"there is no General {place.general} now")
        return True
    wanted = needs(place.general, place.repo, terms)
    own = [(QUOTAS.name, need.scope) for need in wanted if need.scope not in (SOLDIERS, MONEY)]
    await transaction.read_ahead([*own, (EVENTS.name, place.event_id)])
    full = [need.scope for need in wanted if await _full(transaction, need, now, terms)]
    if not full:
        if assignment := await assign(transaction, record, now, terms):
            done.assignments.append(assignment)
        return True
    if SOLDIERS in full:
        return False
    # Written by whoever parks as by whoever gives back, so that of the two one sees the other.
    quota_record, quota = await quota_now(transaction, full[0], now, terms)
    await save_quota(transaction, quota, quota_record, wanted=True)
    await move_place(transaction, record, full[0], f"{full[0]} is full")
    return True


async def _full(transaction: Transaction, need: Need, now: datetime, terms: Terms) -> bool:
    _, quota = await quota_now(transaction, need.scope, now, terms)
    return not quota.fits(need.amount)


async def _wake(transaction: Transaction, gate: Gate, now: datetime, terms: Terms) -> None:
    """Make the first who is parked under each quota with room ready again."""
    async for record in each(transaction, RecordQuery(kind=QUOTAS.name, owner=WANTED)):
        quota = as_of(read_quota(record.doc), now, terms)
        if not quota.room:
            continue
        parked = await transaction.find(RecordQuery(kind=PLACES.name, owner=quota.scope, limit=1))
        if not parked:
            await save_quota(transaction, quota, record, wanted=False)
            continue
        place = read_place(parked[0])
        amount = dict(needs(place.general, place.repo, terms)).get(quota.scope)
        if gate.admits(place.rank, now) and (amount is None or quota.fits(amount)):
            await move_place(transaction, parked[0], READY)
