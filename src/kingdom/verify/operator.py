"""The operator of a trial, and a reader of its log.

The operator pauses a stream, cancels, redrives and discards events, and applies the retention.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from kingdom.bus import Envelope, LogCursor, Operations, Retention
from kingdom.bus.operations import DeadFilter, DeadLetter
from kingdom.clock import utc_now
from kingdom.errors import KingdomError
from kingdom.verify.history import History
from kingdom.verify.workload import ANY, APPLIED, BLOCKING, PAUSED, REACTED, STEADY, Job

_ACTOR = "verify"
_PAUSE_SECONDS_MAX = 0.6
_PAUSE_BETWEEN_SECONDS = 0.2
# The delay of an event that is cancelled before it is due. If the cancellation fails, the trial waits for the event.
_CANCELLED_EVENT_DELAY = timedelta(seconds=3)
# The retention of archive and log. It is much longer than a trial, so the evidence is kept.
_RETENTION = timedelta(days=2)
# The number of events that a dead event blocks.
_FOLLOWERS = 2
_PAGE_SIZE = 50
# The probability that a blocking dead letter is patched and redriven, not discarded.
_MENDED_SHARE = 0.5
# The probability that a dead letter that blocks nothing is redriven.
_REDRIVEN_SHARE = 0.3

Publish = Callable[..., Awaitable[None]]


class Operator:
    """Performs one operation after another, and records each operation in the history."""

    def __init__(self, operations: Operations, publish: Publish, history: History, rng: random.Random) -> None:
        self._operations = operations
        self._publish = publish
        self._history = history
        self._rng = rng
        self._seen: set[int] = set()
        self._may_be_paused = False

    async def run(self, *, cancelled_after_seconds: float) -> None:
        """Perform operations until cancelled."""
        acts = (self._pause_for_a_while, self._cancel_waiting, self._block, self._redrive, self._apply_retention)
        running = asyncio.create_task(self._cancel_running(cancelled_after_seconds))
        try:
            while True:
                for act in self._rng.sample(acts, len(acts)):
                    with contextlib.suppress(KingdomError):
                        await act()
                    with contextlib.suppress(KingdomError):
                        await self.resolve_dead_letters()
                    await asyncio.sleep(_PAUSE_BETWEEN_SECONDS)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def resolve_dead_letters(self) -> int:
        """Patch and redrive, or discard, every dead letter that blocks its key. Return the number of these letters."""
        letters = await self._operations.dead_letters(DeadFilter(stream=BLOCKING), _PAGE_SIZE)
        for letter in letters:
            if self._rng.random() < _MENDED_SHARE:
                await self._patch_and_redrive(letter)
            else:
                with self._recorded("discarding", "discarded", **_facts(letter)):
                    await self._operations.discard([letter.position], reason="hopeless", actor=_ACTOR)
        return len(letters)

    async def pause(self) -> None:
        """Pause the stream `PAUSED`."""
        self._may_be_paused = True
        with self._recorded("pausing", "paused", stream=PAUSED):
            await self._operations.pause(PAUSED, reason="a trial", actor=_ACTOR)

    async def resume(self) -> None:
        """Resume the stream `PAUSED` if it may be paused."""
        if self._may_be_paused:
            with self._recorded("resuming", "resumed", stream=PAUSED):
                await self._operations.resume(PAUSED, actor=_ACTOR)
            self._may_be_paused = False

    async def _pause_for_a_while(self) -> None:
        jobs = [Job(tally=PAUSED, record_state="kept"), Job(tally=PAUSED, record_state="over")]
        await self.pause()
        await self._publish(*(REACTED.envelope(job, stream=PAUSED) for job in jobs))
        await asyncio.sleep(self._rng.uniform(0, _PAUSE_SECONDS_MAX))
        await self.resume()

    async def _cancel_waiting(self) -> None:
        event = REACTED.envelope(Job(fate="open", tally="cancelled"), stream=ANY)
        await self._publish(event, at=utc_now() + _CANCELLED_EVENT_DELAY)
        await self._cancel(event)

    async def _cancel_running(self, after_seconds: float) -> None:
        """Cancel a job while the steady worker runs it."""
        work_ms = int(after_seconds * 4 * 1000)
        event = REACTED.envelope(Job(fate="open", tally="cancelled", work_ms=work_ms), stream=STEADY)
        with contextlib.suppress(KingdomError):
            await self._publish(event)
            await asyncio.sleep(after_seconds)
            await self._cancel(event)

    async def _cancel(self, event: Envelope) -> None:
        facts = {"stream": event.stream, "event": str(event.event_id)}
        self._history.write("cancelling", **facts)
        answer = await self._operations.cancel(event.event_id, str(event.stream), actor=_ACTOR)
        self._history.write("cancelled", answer=answer, **facts)

    async def _block(self) -> None:
        """Publish an event that will end DEAD, followed by some events with the same key."""
        key = f"key-{uuid4()}"
        jobs = [Job(fate="doomed", tally=key), *(Job(tally=key) for _ in range(_FOLLOWERS))]
        await self._publish(*(REACTED.envelope(job, stream=BLOCKING, partition_key=key) for job in jobs))

    async def _patch_and_redrive(self, letter: DeadLetter) -> None:
        payload = {**letter.envelope["payload"], "fate": "done"}
        with self._recorded("redriving", "redriven", mended=True, **_facts(letter)):
            await self._operations.patch(letter.event_id, letter.stream, payload, actor=_ACTOR)
            await self._operations.redrive([letter.position], actor=_ACTOR)

    async def _redrive(self) -> None:
        """Redrive some of the doomed events, each once."""
        for letter in await self._operations.dead_letters(DeadFilter(stream=ANY, code="permanent"), _PAGE_SIZE):
            if letter.position not in self._seen and self._rng.random() < _REDRIVEN_SHARE:
                with self._recorded("redriving", "redriven", mended=False, **_facts(letter)):
                    await self._operations.redrive([letter.position], actor=_ACTOR)
            self._seen.add(letter.position)

    async def _apply_retention(self) -> None:
        report = await self._operations.retain(Retention(archive=_RETENTION, log=_RETENTION))
        self._history.write("retained", keys=report.dedup_keys_removed, records=report.records_removed)

    @contextmanager
    def _recorded(self, before: str, after: str, **facts: Any) -> Iterator[None]:
        """Record a request before it is sent and after it has succeeded."""
        self._history.write(before, **facts)
        yield
        self._history.write(after, **facts)


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {"stream": letter.stream, "event": str(letter.event_id), "position": letter.position}


class LogReader:
    """Reads the log in small pages, and keeps the entries of the handlers."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._cursor = LogCursor()
        self.read: list[Mapping[str, Any]] = []

    async def run(self) -> None:
        """Read repeatedly until cancelled."""
        while True:
            with contextlib.suppress(KingdomError):
                while await self._read_page():
                    pass
            await asyncio.sleep(_PAUSE_BETWEEN_SECONDS)

    async def finish(self) -> None:
        """Read to the end of the log after all writers have stopped."""
        while await self._read_page():
            pass

    async def _read_page(self) -> bool:
        found = await self._operations.read_log(self._cursor, _PAGE_SIZE)
        if found:
            self.read += [each.entry.data for each in found if each.entry.type == APPLIED]
            self._cursor = found[-1].cursor
        return bool(found)
