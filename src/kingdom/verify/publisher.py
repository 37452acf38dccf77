"""A publisher under test. It publishes events at once or with a delay, and commits or rolls back the transaction."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from kingdom.bus import Bus, Envelope, Transaction
from kingdom.clock import utc_now
from kingdom.errors import Conflict, KingdomError
from kingdom.trial_store import TrialStore
from kingdom.verify.history import History
from kingdom.verify.script import die
from kingdom.verify.target import STEPS
from kingdom.verify.workload import (
    ANY,
    BROADCAST,
    CALL_WITHOUT_IDEMPOTENCY,
    CALLS,
    LINE,
    REACTED,
    UNSURE,
    Job,
    describe,
)

# The number of keys of ordered events, and of records in which the reactions to unordered events count.
KEYS = 24
TALLIES = 1_000
# A constant that ends in SHARE is a probability.
_CONCURRENT_BATCHES = 3
_EVENTS_MAX = 12
_BACKLOG_CHECK_SHARE = 0.1
_BACKLOG_MAX = 1_500
_CALL_SHARE = 0.15
_BROADCAST_SHARE = 0.05
_CONTEST_SHARE = 0.15
_CONTESTANTS = 3
_DELAYED_SHARE = 0.05
_DELAY_SECONDS_MAX = 1.0
# A caller that does not know whether its commit succeeded publishes an event again, at once or much later. Only an
# event with an id that the caller has given can be published again later.
_GIVEN_ID_SHARE = 0.2
_AGAIN_SHARE = 0.15
_CONFIRMED_MAX = 100
_DOOMED_SHARE = 0.01
_ONCE_SHARE = 0.05
_WORK_MS_MAX = 40
_COMMITTED_SHARE = 0.85
# Some processes kill themselves soon after they begin to publish: before, during or after the commit.
_DYING_SHARE = 0.01
_DYING_SECONDS_MAX = 0.05


class _RollbackError(Exception):
    """Raised to roll a transaction back."""


class Publisher:
    """Publishes random jobs until stopped."""

    def __init__(self, bus: Bus, store: TrialStore, history: History, rng: random.Random) -> None:
        self._bus = bus
        self._store = store
        self._history = history
        self._rng = rng
        self._confirmed: deque[Envelope] = deque(maxlen=_CONFIRMED_MAX)

    async def run(self, stopping: asyncio.Event, *, pause_seconds: float) -> None:
        """Publish batches of events until stopped, a few batches at a time."""
        await asyncio.gather(*(self._run_one(stopping, pause_seconds) for _ in range(_CONCURRENT_BATCHES)))

    async def _run_one(self, stopping: asyncio.Event, pause_seconds: float) -> None:
        while not stopping.is_set():
            if self._rng.random() < _BACKLOG_CHECK_SHARE:
                await self._let_workers_catch_up(stopping)
            await self.publish(self._draw_batch())
            await asyncio.sleep(self._rng.uniform(0, 2 * pause_seconds))

    async def _let_workers_catch_up(self, stopping: asyncio.Event) -> None:
        """Wait while the backlog is long, so that a slow machine can drain it."""
        while not stopping.is_set():
            with contextlib.suppress(KingdomError):
                if await self._store.unfinished() < _BACKLOG_MAX:
                    return
            await asyncio.sleep(self._rng.uniform(0.2, 0.5))

    def _draw_batch(self) -> list[Envelope]:
        envelopes = [draw_event(self._rng) for _ in range(self._rng.randint(1, _EVENTS_MAX))]
        if self._rng.random() < _CONTEST_SHARE:
            contest = str(uuid4())
            streams = self._rng.choices((ANY, LINE), k=_CONTESTANTS)
            envelopes += [draw_reaction(self._rng, stream, contest=contest) for stream in streams]
        return envelopes

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Publish a batch in one of several ways, and record the intention and the result."""
        way = self._rng.choices(("plain", "slow", "linger"), weights=(6, 2, 2))[0]
        dues = [self._draw_due() for _ in envelopes]
        described = [describe(envelope, due=due) for envelope, due in zip(envelopes, dues, strict=True)]
        self._history.write("publishing", events=described)
        again = self._draw_again(envelopes)
        if self._rng.random() < _DYING_SHARE:
            asyncio.get_running_loop().call_later(self._rng.uniform(0, _DYING_SECONDS_MAX), die)
        facts: dict[str, Any] = {}
        try:
            publications = [*zip(envelopes, dues, strict=True), *((envelope, None) for envelope in again)]
            duplicates = await self._publish_by(way, publications)
            self._confirmed.extend(envelope for envelope in envelopes if envelope.event_id_given)
            end = "published"
            facts = {"again": [str(envelope.event_id) for envelope in again], "duplicates": duplicates}
        except (_RollbackError, Conflict):
            end = "rolled_back"
        except KingdomError:
            # The connection broke before or after the commit, so the result is unknown.
            end = "publish_unknown"
        self._history.write(end, way=way, events=[str(envelope.event_id) for envelope in envelopes], **facts)

    def _draw_again(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Choose an event to publish again: the first event of this batch, or a confirmed event with a given id."""
        if self._rng.random() >= _AGAIN_SHARE:
            return []
        return [self._rng.choice([*envelopes[:1], *self._confirmed])]

    def _draw_due(self) -> datetime | None:
        if self._rng.random() >= _DELAYED_SHARE:
            return None
        return utc_now() + timedelta(seconds=self._rng.uniform(0, _DELAY_SECONDS_MAX))

    async def _publish_by(
        self, way: str, publications: Sequence[tuple[Envelope, datetime | None]]
    ) -> list[tuple[str, str]]:
        """Publish events, and return the stream and id of each event that the stream already had.

        The way `slow` pauses before it publishes. The way `linger` keeps the transaction open for a while afterwards.
        """
        keep = self._rng.random() < _COMMITTED_SHARE
        wait = self._rng.uniform(0.02, 0.3)
        if way == "linger":
            async with self._store.slow_transaction(self._bus, seconds=wait, keep=keep) as transaction:
                await _publish(transaction, publications)
        else:
            async with self._bus.transaction() as transaction:
                if way == "slow":
                    await transaction.once("verify.publisher", str(uuid4()), timedelta(hours=1))
                    await asyncio.sleep(wait)
                await _publish(transaction, publications)
                if not keep:
                    raise _RollbackError
        if not keep:
            raise _RollbackError
        return [(copy.stream.name, str(copy.envelope.event_id)) for copy in transaction.duplicates]


async def _publish(transaction: Transaction, publications: Sequence[tuple[Envelope, datetime | None]]) -> None:
    for envelope, due in publications:
        await transaction.publish(envelope, at=due)


def draw_event(rng: random.Random) -> Envelope:
    """Draw a random event: a reaction or a call, ordered or not, or an event for all subscribed streams."""
    stream, chance = rng.choice((ANY, LINE)), rng.random()
    if chance < _CALL_SHARE:
        return draw_call(rng, stream)
    if chance < _CALL_SHARE + _BROADCAST_SHARE:
        key = _key(rng, LINE)
        return BROADCAST.envelope(Job(tally=str(key)), partition_key=key, **_draw_id(rng))
    return draw_reaction(rng, stream)


def draw_reaction(rng: random.Random, stream: str, *, contest: str = "") -> Envelope:
    """Draw a reaction. Sometimes it has a follow-up with the same key, another key or no key."""
    key = _key(rng, stream)
    follow_ups = rng.choices(
        ((), ((ANY, None),), ((LINE, key or _key(rng, LINE)),), ((LINE, _key(rng, LINE)),)), (7, 1, 1, 1)
    )
    job = Job(
        fate="doomed" if rng.random() < _DOOMED_SHARE else "done",
        tally=key or f"tally-{rng.randrange(TALLIES)}",
        once=rng.random() < _ONCE_SHARE,
        contest=contest,
        work_ms=rng.choices((0, rng.randint(1, _WORK_MS_MAX)), (3, 1))[0],
        follow_ups=follow_ups[0],
    )
    return REACTED.envelope(job, stream=stream, partition_key=key, **_draw_id(rng))


def draw_call(rng: random.Random, stream: str) -> Envelope:
    """Draw a call. Sometimes its target fails at first."""
    event_type = rng.choices(CALLS, (4, 4, 1, 1, 2))[0]
    answers = tuple(rng.choice(STEPS) for _ in range(rng.choices((0, 1, 2), (5, 3, 2))[0]))
    if event_type is CALL_WITHOUT_IDEMPOTENCY:
        return event_type.envelope(Job(call=f"call-{uuid4()}", answers=answers, fate="open"), stream=UNSURE)
    job = Job(call=f"call-{uuid4()}", answers=answers)
    return event_type.envelope(job, stream=stream, partition_key=_key(rng, stream), **_draw_id(rng))


def _draw_id(rng: random.Random) -> dict[str, Any]:
    """Return an event id as an argument for the envelope, or no argument, so that the envelope creates the id."""
    return {"event_id": uuid4()} if rng.random() < _GIVEN_ID_SHARE else {}


def _key(rng: random.Random, stream: str) -> str | None:
    return f"key-{rng.randrange(KEYS)}" if stream == LINE else None
