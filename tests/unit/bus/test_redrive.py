"""Redriving, on operations that keep their dead letters in a dictionary."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import pytest

from kingdom.bus import LogCursor, LoggedEntry, Operations, Retention
from kingdom.bus.operations import DeadFilter, DeadLetter, Pin, RetentionReport, Situation, StreamStats
from kingdom.bus.redrive import RedrivePlan, RedriveStep, find_dead_letters, redrive_all
from kingdom.clock import utc_now
from kingdom.ids import new_event_id


class DeadLetters(Operations):
    """Dead letters by position. Those in `dies_again` end DEAD again immediately when redriven; the others are done."""

    def __init__(self, count: int, dies_again: frozenset[int] = frozenset()) -> None:
        self.letters = {position: letter(position) for position in range(1, count + 1)}
        self.dies_again = dies_again
        self.redriven: list[int] = []
        self.pages: list[int] = []

    async def dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        self.pages.append(limit)
        dead = [each for position, each in sorted(self.letters.items()) if position > which.after]
        return [each for each in dead if which.type in (None, each.type)][:limit]

    async def redrive(self, positions: Sequence[int], *, actor: str) -> list[UUID]:
        assert actor == "ann"
        found = [self.letters[position] for position in positions if position in self.letters]
        for each in found:
            self.redriven.append(each.position)
            if each.position not in self.dies_again:
                del self.letters[each.position]
        return [each.event_id for each in found]

    async def situations(self, event_id: UUID) -> list[Situation]:
        dead = any(each.event_id == event_id for each in self.letters.values())
        facts = {"attempt": 1, "max_attempts": 10, "crash_count": 0, "now": utc_now(), "type": "Job", "stream": "jobs"}
        return [Situation(event_id=event_id, status="DEAD" if dead else "DONE", **facts)]  # type: ignore[arg-type]

    async def stats(self) -> list[StreamStats]:
        raise NotImplementedError

    async def pause(self, stream: str, *, reason: str, actor: str) -> None:
        raise NotImplementedError

    async def resume(self, stream: str, *, actor: str) -> bool:
        raise NotImplementedError

    async def patch(self, event_id: UUID, stream: str, payload: Mapping[str, Any], *, actor: str) -> None:
        raise NotImplementedError

    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        raise NotImplementedError

    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        raise NotImplementedError

    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        raise NotImplementedError

    async def log_end(self) -> LogCursor:
        raise NotImplementedError

    async def keeps_log_after(self, cursor: LogCursor) -> bool:
        raise NotImplementedError

    async def log_lag(self) -> timedelta:
        raise NotImplementedError

    async def retain(self, retention: Retention) -> RetentionReport:
        raise NotImplementedError

    async def pins(self) -> list[Pin]:
        raise NotImplementedError


def letter(position: int) -> DeadLetter:
    return DeadLetter(
        event_id=new_event_id(),
        stream="jobs",
        type="Even" if position % 2 == 0 else "Odd",
        partition_key=None,
        attempt=10,
        error_code="error",
        error_message="boom",
        created_at=utc_now(),
        died_at=utc_now(),
        position=position,
        envelope={},
    )


async def run(operations: DeadLetters, plan: RedrivePlan) -> list[RedriveStep]:
    return [
        step async for step in redrive_all(operations, find_dead_letters(operations, DeadFilter()), plan, actor="ann")
    ]


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits between letters in a list, without waiting."""
    waits, sleep = list[float](), asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("kingdom.bus.redrive.asyncio.sleep", note)
    return waits


@pytest.mark.parametrize("limit", [None, 0, 1, 99, 100, 101, 250, 1000])
async def test_dead_letters_are_found_page_by_page_up_to_the_limit(limit: int | None) -> None:
    operations = DeadLetters(250)
    found = [each.position async for each in find_dead_letters(operations, DeadFilter(), limit)]
    assert found == list(range(1, 251))[:limit]
    assert max(operations.pages, default=0) <= 100


async def test_every_page_of_dead_letters_uses_the_same_filter() -> None:
    found = [each.position async for each in find_dead_letters(DeadLetters(300), DeadFilter(type="Odd"))]
    assert found == list(range(1, 301, 2))


@pytest.mark.usefixtures("no_waiting")
async def test_every_letter_is_redriven_once_and_in_order() -> None:
    operations = DeadLetters(30)
    steps = await run(operations, RedrivePlan())
    assert operations.redriven == list(range(1, 31))
    assert [(step.redriven, step.died_again) for step in steps] == [(number, 0) for number in range(1, 31)]


async def test_no_dead_letter_after_the_last_position_is_found() -> None:
    assert [each.position async for each in find_dead_letters(DeadLetters(250), DeadFilter(), last=120)] == [
        *range(1, 121)
    ]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("count", "failures", "redriven"), [(30, 1, 3), (30, 2, 5), (3, 1, 3)])
async def test_the_redrive_stops_when_too_many_letters_have_died_again_even_at_the_last_one(
    count: int, failures: int, redriven: int
) -> None:
    operations = DeadLetters(count, dies_again=frozenset({3, 5, 9}))
    steps = await run(operations, RedrivePlan(stop_after_failures=failures))
    assert len(operations.redriven) == redriven
    assert (steps[-1].letter, steps[-1].redriven, steps[-1].died_again) == (None, redriven, failures)


@pytest.mark.usefixtures("no_waiting")
async def test_a_redrive_without_a_failure_limit_redrives_every_letter() -> None:
    operations = DeadLetters(30, dies_again=frozenset(range(1, 31)))
    assert len(await run(operations, RedrivePlan(stop_after_failures=None))) == 30


@pytest.mark.usefixtures("no_waiting")
async def test_a_letter_that_another_process_redrove_is_not_counted() -> None:
    operations = DeadLetters(5)
    steps = []
    async for step in redrive_all(operations, find_dead_letters(operations, DeadFilter()), RedrivePlan(), actor="ann"):
        steps.append(step)
        operations.letters.pop(3, None)
    assert operations.redriven == [1, 2, 4, 5]
    assert len(steps) == 4


async def test_the_redrive_keeps_its_rate(no_waiting: list[float]) -> None:
    await run(DeadLetters(20), RedrivePlan(per_second=4, stop_after_failures=None))
    assert no_waiting == [0.25] * 20


async def test_a_redrive_with_a_failure_limit_begins_slowly_and_then_keeps_its_rate(no_waiting: list[float]) -> None:
    await run(DeadLetters(20), RedrivePlan(per_second=50))
    assert no_waiting == sorted(no_waiting, reverse=True)
    assert no_waiting[0] == 1.0
    assert no_waiting[-1] == 1 / 50
