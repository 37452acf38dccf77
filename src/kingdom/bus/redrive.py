"""Redrive many dead letters with a slow start and a rate limit. Stop if they end DEAD again."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from uuid import UUID

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations

_PAGE = 100
# The pause after the first letter. Each later pause is half as long. The long first pauses show whether letters die
# again before most of them are redriven.
_FIRST_PAUSE_SECONDS = 1.0
# How many of the redriven letters are checked after each redrive.
_CHECKS_PER_REDRIVE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """How to redrive. After `stop_after_failures` letters have died again, the redrive stops; None means no limit."""

    per_second: float = 50.0
    stop_after_failures: int | None = 1


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """Progress: the letter that was just redriven, and the counts so far.

    `letter` is None in the last step of a redrive that stops because too many letters died again.
    """

    letter: DeadLetter | None
    redriven: int
    died_again: int


async def find_dead_letters(
    operations: Operations, which: DeadFilter, limit: int | None = None, last: int | None = None
) -> AsyncIterator[DeadLetter]:
    """Yield matching dead letters, at most `limit` of them, and none after the position `last`."""
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
    """Redrive dead letters one after another. Stop early if too many of them die again."""
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
    """Check some of the redriven letters and return how many died again. Open letters stay in `watched`."""
    died = 0
    for _ in range(min(_CHECKS_PER_REDRIVE, len(watched))):
        event_id, stream = watched.popleft()
        situations = await operations.situations(event_id)
        status = next((each.status for each in situations if each.stream == stream), "DISCARDED")
        died += status == "DEAD"
        if status in ("PENDING", "PROCESSING"):
            watched.append((event_id, stream))
    return died
