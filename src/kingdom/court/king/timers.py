"""What the King does by the clock: schedules, what was held back long enough, questions nobody answered, admission."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.court.king.admission import AdmissionResult, admit, release_absent
from kingdom.court.king.answers import close_overdue_questions
from kingdom.court.king.context import KingContext
from kingdom.court.king.release import release_forgotten
from kingdom.court.king.schedules import fire_schedules
from kingdom.court.king.waiting_queue import release_held
from kingdom.errors import KingdomError
from kingdom.workflow.records import change

# So many are freed in one transaction; the rest is left to the next look.
_LIMIT = 50
# Among the questions that are due are those of which people are only to be reminded.
_ASKS_LIMIT = 500
# So many transactions of admission follow each other at most, after which schedules have their turn again.
_ROUNDS_MAX = 200
_log = structlog.get_logger("kingdom.court")


async def run_timers(bus: Bus, context: KingContext) -> None:
    """Look until cancelled; any number of Kings may do so."""
    while True:
        for duty in TIMERS:
            try:
                await duty(bus, context.clock(), context)
            except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
                expected = isinstance(error, KingdomError)
                _log.warning(
                    "the King could not do a duty, trying again",
                    duty=duty.__name__,
                    error=str(error),
                    exc_info=None if expected else error,
                )
        await asyncio.sleep(context.settings.every_seconds)


async def run_timers_once(bus: Bus, context: KingContext) -> None:
    """Look once."""
    for duty in TIMERS:
        await duty(bus, context.clock(), context)


async def release_waiting(bus: Bus, now: datetime, context: KingContext) -> None:
    """Free whom nothing holds back any more: time, a General that was gone, somebody who has ended."""

    async def act(transaction: Transaction) -> None:
        await release_held(transaction, now, _LIMIT)
        await release_absent(transaction, context)
        await release_forgotten(transaction, now, context)

    await change(bus, act)


async def close_questions(bus: Bus, now: datetime, _: KingContext) -> None:
    """Decide about questions that nobody answered in time."""

    async def act(transaction: Transaction) -> None:
        await close_overdue_questions(transaction, now, _ASKS_LIMIT)

    await change(bus, act)


async def admit_waiting(bus: Bus, now: datetime, context: KingContext) -> None:
    """Admit whom there is room for, however many wait."""

    async def act(transaction: Transaction) -> AdmissionResult:
        return await admit(transaction, now, context)

    for _ in range(_ROUNDS_MAX):
        if not (await change(bus, act)).has_more:
            return


# Each in transactions of its own, so that one that cannot be done does not keep the others from it.
TIMERS: tuple[Callable[[Bus, datetime, KingContext], Awaitable[object]], ...] = (
    fire_schedules,
    release_waiting,
    close_questions,
    admit_waiting,
)
