"""The reactions of the processes under test. They write records, take dedup keys, publish, and log what they did."""

import asyncio
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kingdom.bus import Acked, Defer, Dispatcher, Event, Outcome, Record, Transaction, close_effect
from kingdom.errors import Permanent, Transient
from kingdom.verify.history import History
from kingdom.verify.script import ScriptRunner, die
from kingdom.verify.workload import (
    BROADCAST,
    CALL_CONFIRMED_LATER,
    CLOSED,
    EXPIRING,
    REACTED,
    TALLY,
    Job,
    applied_entry,
    describe,
)

_ONCE_FOR = timedelta(hours=1)
_EXPIRES_AFTER = timedelta(milliseconds=1)


class Reactions:
    """The reactions of one worker process. `failure_rate` is the probability that a reaction fails by chance."""

    def __init__(self, history: History, scripts: ScriptRunner, rng: random.Random, *, failure_rate: float) -> None:
        self._history = history
        self._scripts = scripts
        self._rng = rng
        self._failure_rate = failure_rate

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the reactions."""
        dispatcher.reaction(REACTED)(self._react)
        dispatcher.reaction(BROADCAST)(self._react)
        dispatcher.reaction(CLOSED)(self._close)

    async def _react(self, event: Event[Job], transaction: Transaction) -> Outcome | None:
        stream, name = event.envelope.stream, str(event.envelope.event_id)
        with self._history.handling(stream=stream, event=name, token=event.fence):
            return await self._handle(event, transaction)

    async def _handle(self, event: Event[Job], transaction: Transaction) -> Outcome | None:
        job, stream, name = event.payload, event.envelope.stream, str(event.envelope.event_id)
        await self._scripts.run(job.script, name, f"react:{event.attempt}")
        if job.fate == "poison":
            die()
        if job.fate == "doomed":
            raise Permanent("it can never be handled")
        await asyncio.sleep(job.work_ms / 1000)
        chance = self._rng.random()
        if chance < self._failure_rate / 4:
            return Defer.by(timedelta(milliseconds=100), "not yet")
        if job.once and not await transaction.once("verify", f"{stream}/{name}", _ONCE_FOR):
            self._history.write("once_refused", stream=stream, event=name, token=event.fence)
        if chance < self._failure_rate / 2:
            raise RuntimeError("a bug in a handler")
        if chance < self._failure_rate:
            raise Transient("a random failure")
        facts: dict[str, Any] = {}
        if job.contest:
            won = await transaction.once("verify.contest", job.contest, _ONCE_FOR)
            facts |= {"contest": job.contest, "won": won}
        if job.record_state:
            facts |= await self._write_expiring(transaction, f"{stream}/{name}", job.record_state)
        await self._apply(event, transaction, facts)
        return None

    async def _apply(self, event: Event[Job], transaction: Transaction, facts: Mapping[str, Any]) -> None:
        job = event.payload
        counter = await transaction.get(TALLY.name, job.tally)
        if counter is None:
            counter = Record(kind=TALLY.name, id=job.tally, state="open", doc={"count": 0})
        await transaction.put(counter.replace(doc={"count": counter.doc["count"] + 1}))
        follow_ups = [
            REACTED.envelope(Job(tally=key or f"{job.tally}+"), stream=stream, partition_key=key)
            for stream, key in job.follow_ups
        ]
        await transaction.publish(*follow_ups)
        described = [describe(envelope) for envelope in follow_ups]
        entry = applied_entry(event, self._history.process, tally=job.tally, follow_ups=described, **facts)
        await transaction.append(entry)

    async def _close(self, event: Event[Job], transaction: Transaction) -> None:
        """Close a call that the target has accepted but not confirmed."""
        closed = await close_effect(transaction, CALL_CONFIRMED_LATER.name, event.payload.call, Acked())
        await transaction.append(applied_entry(event, self._history.process, closes=event.payload.call, closed=closed))

    async def _write_expiring(self, transaction: Transaction, name: str, state: str) -> Mapping[str, Any]:
        """Write a record in this state, and a dedup key that expires at once, as work for the retention."""
        await transaction.once("verify.fleeting", name, _EXPIRES_AFTER)
        await transaction.put(Record(kind=EXPIRING.name, id=name, state=state, doc={}))
        return {"record": name, "state": state}
