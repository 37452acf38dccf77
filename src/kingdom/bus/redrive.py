"""Redriving many dead letters with care: a slow start, a rate, and a stop when they die again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from uuid import UUID

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations

_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """How to redrive: how many a second, at most how many, and how many renewed deaths stop it."""

    per_second: float = 50.0
    limit: int | None = None
    stop_after_failures: int | None = 1


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """Progress: the letter just redriven, and how many of this run died again so far."""

    letter: DeadLetter
    redriven: int
    died_again: int


async def matching(operations: Operations, which: DeadFilter, limit: int | None = None) -> AsyncIterator[DeadLetter]:
    """Walk along all matching dead letters, page by page."""
    seen = 0
    while limit is None or seen < limit:
        page = await operations.dead_letters(which, min(_PAGE, limit - seen) if limit else _PAGE)
        for letter in page:
            yield letter
        if not page:
            return
        seen += len(page)
        which = replace(which, after=page[-1].position)


async def redrive_all(
    operations: Operations, which: DeadFilter, plan: RedrivePlan, *, actor: str
) -> AsyncIterator[RedriveStep]:
    """Redrive matching dead letters one after another; ends early when too many of them died again."""
    letters = [letter async for letter in matching(operations, which, plan.limit)]
    redriven: dict[UUID, str] = {}
    for letter in letters:
        died = await _died_again(operations, redriven) if plan.stop_after_failures else 0
        if plan.stop_after_failures and died >= plan.stop_after_failures:
            return
        if await operations.redrive([letter.position], actor=actor):
            redriven[letter.event_id] = letter.stream
            yield RedriveStep(letter, len(redriven), died)
        await asyncio.sleep(1 / plan.per_second)


async def _died_again(operations: Operations, redriven: dict[UUID, str]) -> int:
    """Count renewed deaths among the newest redriven events; older ones have shown themselves before."""
    died = 0
    for event_id, stream in list(redriven.items())[-_PAGE:]:
        situations = await operations.situations(event_id)
        died += any(s.stream == stream and s.status == "DEAD" for s in situations)
    return died
