"""Redriving many dead letters with care: a slow start, a rate, and a stop when they die again."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations

_PAGE = 100
# The first letters go slowly, so that one which dies at once is seen before many follow.
_FIRST_PAUSE_SECONDS = 1.0
# Looks back at redriven letters between two of them: enough to see each several times, few enough to cost little.
_LOOKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """How to redrive: how many a second, at most how many, and how many renewed deaths stop it."""

    per_second: float = 50.0
    limit: int | None = None
    stop_after_failures: int | None = 1


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """Progress: the letter just redriven, None where the run stopped early, and how many died again so far."""

    letter: DeadLetter | None
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
    watched: deque[DeadLetter] = deque()
    redriven = died_again = 0
    pause = _FIRST_PAUSE_SECONDS if plan.stop_after_failures else 0.0
    for letter in letters:
        if plan.stop_after_failures:
            died_again += await _died_again(operations, watched)
            if died_again >= plan.stop_after_failures:
                yield RedriveStep(None, redriven, died_again)
                return
        if await operations.redrive([letter.position], actor=actor):
            redriven += 1
            watched.append(letter)
            yield RedriveStep(letter, redriven, died_again)
        await asyncio.sleep(max(pause, 1 / plan.per_second))
        pause /= 2


async def _died_again(operations: Operations, watched: deque[DeadLetter]) -> int:
    """Look at some of the redriven letters, each in its turn, until it has ended; returns how many ended dead."""
    died = 0
    for _ in range(min(_LOOKS, len(watched))):
        letter = watched.popleft()
        situations = await operations.situations(letter.event_id)
        status = next((each.status for each in situations if each.stream == letter.stream), "DISCARDED")
        died += status == "DEAD"
        if status in ("PENDING", "PROCESSING"):
            watched.append(letter)
    return died
