"""Redriving many dead letters with care: a slow start, a rate, and a stop when they die again."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from uuid import UUID

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations

_PAGE = 100
# The first letters go slowly, so that one which dies at once is seen before many follow.
_FIRST_PAUSE_SECONDS = 1.0
# Looks back at redriven letters between two of them: enough to see each several times, few enough to cost little.
_LOOKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """How to redrive: how many a second, and how many renewed deaths stop it."""

    per_second: float = 50.0
    stop_after_failures: int | None = 1


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """Progress: the letter just redriven, None where too many died again, and how many that are so far."""

    letter: DeadLetter | None
    redriven: int
    died_again: int


async def matching(
    operations: Operations, which: DeadFilter, limit: int | None = None, last: int | None = None
) -> AsyncIterator[DeadLetter]:
    """Walk along all matching dead letters, page by page, up to a position if one is given."""
    seen = 0
    while limit is None or seen < limit:
        page = await operations.dead_letters(which, min(_PAGE, limit - seen) if limit else _PAGE)
        for letter in page:
            if last is not None and letter.position > last:
                return
            yield letter
        if not page:
            return
        seen += len(page)
        which = replace(which, after=page[-1].position)


async def redrive_all(
    operations: Operations, letters: AsyncIterator[DeadLetter], plan: RedrivePlan, *, actor: str
) -> AsyncIterator[RedriveStep]:
    """Redrive dead letters one after another; ends early when too many of them died again."""
    watched: deque[tuple[UUID, str]] = deque()
    redriven = died_again = 0
    pause = _FIRST_PAUSE_SECONDS if plan.stop_after_failures else 0.0
    async for letter in letters:
        if await operations.redrive([letter.position], actor=actor):
            redriven += 1
            watched.append((letter.event_id, letter.stream))
            yield RedriveStep(letter, redriven, died_again)
        await asyncio.sleep(max(pause, 1 / plan.per_second))
        pause /= 2
        if plan.stop_after_failures:
            died_again += await _died_again(operations, watched)
            if died_again >= plan.stop_after_failures:
                yield RedriveStep(None, redriven, died_again)
                return


async def _died_again(operations: Operations, watched: deque[tuple[UUID, str]]) -> int:
    """Look at some of the redriven letters, each in its turn, until it has ended; returns how many ended dead."""
    died = 0
    for _ in range(min(_LOOKS, len(watched))):
        event_id, stream = watched.popleft()
        situations = await operations.situations(event_id)
        status = next((each.status for each in situations if each.stream == stream), "DISCARDED")
        died += status == "DEAD"
        if status in ("PENDING", "PROCESSING"):
            watched.append((event_id, stream))
    return died
