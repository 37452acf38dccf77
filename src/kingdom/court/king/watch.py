"""What the King does by the clock: schedules, what was held back long enough, questions nobody answered, admission."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.court.king.admission import Admission, admit, free_absent
from kingdom.court.king.answers import answer_for_nobody
from kingdom.court.king.resting import rest_forgotten
from kingdom.court.king.schedules import fire_schedules
from kingdom.court.king.terms import Terms
from kingdom.court.king.waiting import free_held
from kingdom.errors import KingdomError
from kingdom.workflow.records import run_transaction

# So many are freed in one transaction; the rest is left to the next look.
_LIMIT = 50
# Among the questions that are due are those of which people are only to be reminded.
_ASKS_LIMIT = 500
# So many transactions of admission follow each other at most, after which schedules have their turn again.
_ROUNDS_MAX = 200
_log = structlog.get_logger("kingdom.court")


async def watch(bus: Bus, terms: Terms) -> None:
    """Look until cancelled; any number of Kings may do so."""
    while True:
        for duty in DUTIES:
            try:
                await duty(bus, terms.clock(), terms)
            except Exception as error:  # noqa: BLE001 - whatever it was, somebody has to go on looking
                expected = isinstance(error, KingdomError)
                _log.warning(
                    "the King could not do a duty, trying again",
                    duty=duty.__name__,
                    error=str(error),
                    exc_info=None if expected else error,
                )
        await asyncio.sleep(terms.settings.every_seconds)


async def tick(bus: Bus, terms: Terms) -> None:
    """Look once."""
    for duty in DUTIES:
        await duty(bus, terms.clock(), terms)


async def free_those_who_need_not_wait(bus: Bus, now: datetime, terms: Terms) -> None:
    """Free whom nothing holds back any more: time, a General that was gone, somebody who has ended."""

    async def act(transaction: Transaction) -> None:
        await free_held(transaction, now, _LIMIT)
        await free_absent(transaction, terms)
        await rest_forgotten(transaction, now, terms)

    await run_transaction(bus, act)


async def go_on_without_people(bus: Bus, now: datetime, _: Terms) -> None:
    """Decide about questions that nobody answered in time."""

    async def act(transaction: Transaction) -> None:
        await answer_for_nobody(transaction, now, _ASKS_LIMIT)

    await run_transaction(bus, act)


async def admit_all(bus: Bus, now: datetime, terms: Terms) -> None:
    """Admit whom there is room for, however many wait."""

    async def act(transaction: Transaction) -> Admission:
        return await admit(transaction, now, terms)

    for _ in range(_ROUNDS_MAX):
        if not (await run_transaction(bus, act)).has_more:
            return


# Each in transactions of its own, so that one that cannot be done does not keep the others from it.
DUTIES: tuple[Callable[[Bus, datetime, Terms], Awaitable[object]], ...] = (
    fire_schedules,
    free_those_who_need_not_wait,
    go_on_without_people,
    admit_all,
)
