"""The King's timers: schedules, held events, overdue questions, admission."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.court.king.admission import AdmissionResult, admit, release_returned_generals
from kingdom.court.king.answers import close_overdue_questions
from kingdom.court.king.context import KingContext
from kingdom.court.king.release import release_inactive
from kingdom.court.king.round_queue import release_rounds
from kingdom.court.king.rounds import end_followups
from kingdom.court.king.schedules import fire_schedules
from kingdom.court.king.waiting_queue import release_held
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

# How many entries one transaction releases. The rest follow in the next round.
_ENTRIES_LIMIT = 50
# How many due questions one transaction reads. Most of them may only need a reminder, so the limit is higher.
_QUESTIONS_LIMIT = 500
# How many admission transactions one round runs, so that the other timers get their turn.
_ROUNDS_MAX = 200
_log = structlog.get_logger("kingdom.court")


async def run_timers(bus: Bus, context: KingContext) -> None:
    """Run all timers until cancelled. Several Kings may do this at the same time."""
    while True:
        for timer in TIMERS:
            try:
                await timer(bus, context.clock(), context)
            except Exception as error:  # noqa: BLE001 - one failing timer must not end the loop
                log_failure(_log, "a timer of the King failed, trying again", error, timer=timer.__name__)
        await asyncio.sleep(context.settings.every_seconds)


async def run_timers_once(bus: Bus, context: KingContext) -> None:
    """Run every timer once."""
    for timer in TIMERS:
        await timer(bus, context.clock(), context)


async def release_waiting(bus: Bus, now: datetime, context: KingContext) -> None:
    """End overdue followups, release entries that nothing holds any more, and free slots of inactive assignments."""

    async def act(transaction: Transaction) -> None:
        await end_followups(transaction, now, context)
        await release_held(transaction, now, _ENTRIES_LIMIT)
        await release_returned_generals(transaction, context)
        await release_inactive(transaction, now, context)
        await release_rounds(transaction)

    await run_transaction(bus, act)


async def close_questions(bus: Bus, now: datetime, _: KingContext) -> None:
    """Decide about questions without an answer in time."""

    async def act(transaction: Transaction) -> None:
        await close_overdue_questions(transaction, now, _QUESTIONS_LIMIT)

    await run_transaction(bus, act)


async def admit_waiting(bus: Bus, now: datetime, context: KingContext) -> None:
    """Admit waiting entries while there is room."""

    async def act(transaction: Transaction) -> AdmissionResult:
        return await admit(transaction, now, context)

    for _ in range(_ROUNDS_MAX):
        if not (await run_transaction(bus, act)).has_more:
            return


# Each timer runs in its own transactions, so that its failure does not affect the other timers.
TIMERS: tuple[Callable[[Bus, datetime, KingContext], Awaitable[object]], ...] = (
    fire_schedules,
    release_waiting,
    close_questions,
    admit_waiting,
)
