"""What the processes under test handle: streams, jobs and reactions, which leave traces that can be checked."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import msgspec

from kingdom.bus import (
    Defer,
    Dispatcher,
    Envelope,
    EventType,
    LogEntry,
    Outcome,
    Received,
    Record,
    RecordKind,
    RetryPolicy,
    Stream,
    Topology,
    Transaction,
)
from kingdom.errors import Permanent, Transient
from kingdom.verify.history import History
from kingdom.verify.script import Stagehand, die

ANY = "verify.any"
LINE = "verify.line"
STEADY = "verify.steady"
APPLIED = "verify.applied"
TALLY = RecordKind(name="verify_tally", directories={"open": "state/verify"})
_ONCE_FOR = timedelta(hours=1)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one event asks for.

    A reaction takes its time, counts in `tally` and publishes `follow_ups` (stream and key of each); a call happens
    once per `call`, and `answers` tells how the target treats its first requests.
    """

    fate: Literal["done", "doomed", "poison"] = "done"
    tally: str = "one"
    once: bool = False
    work_ms: int = 0
    follow_ups: tuple[tuple[str, str | None], ...] = ()
    call: str = ""
    answers: tuple[str, ...] = ()
    script: dict[str, str] = {}


REACTED = EventType(name="verify.Reacted", payload=Job)
CALLED = EventType(name="verify.Called", payload=Job)
CALLED_UNDER_FENCE = EventType(name="verify.CalledUnderFence", payload=Job)


def topology(lease: timedelta, steady_lease: timedelta | None = None) -> Topology:
    """Return the streams: one without order, one with it where a dead event lets the later ones of its key pass.

    The third has jobs that last longer than their lease, which may be shorter than that of the others.
    """
    retry = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_attempts=40)
    return Topology(
        [
            Stream(name=ANY, lease=lease, retry=retry),
            Stream(name=LINE, lease=lease, retry=retry, ordered=True, on_dead="skip"),
            Stream(name=STEADY, lease=steady_lease or lease, retry=retry),
        ]
    )


def describe(envelope: Envelope) -> dict[str, Any]:
    """Return what a checker must know of a published event."""
    return {
        "event": str(envelope.event_id),
        "streams": [envelope.stream],
        "key": envelope.partition_key,
        "fate": envelope.payload["fate"],
        "call": envelope.payload["call"],
    }


def applied(event: Received[Job], process: str, **facts: Any) -> LogEntry:
    """Return the trace of a handler, for the transaction that settles its event."""
    envelope = event.envelope
    data = {"stream": envelope.stream, "event": str(envelope.event_id), "token": event.fence, **facts}
    return LogEntry(type=APPLIED, actor=process, data=data)


class Reactions:
    """The reaction of one worker process; `trouble` is its chance to fail by itself."""

    def __init__(self, history: History, stagehand: Stagehand, rng: random.Random, *, trouble: float) -> None:
        self._history = history
        self._stagehand = stagehand
        self._rng = rng
        self._trouble = trouble

    def register(self, dispatcher: Dispatcher) -> None:
        """Add the reaction to the table of handlers."""
        dispatcher.reaction(REACTED)(self._react)

    async def _react(self, event: Received[Job], transaction: Transaction) -> Outcome | None:
        stream, name = event.envelope.stream, str(event.envelope.event_id)
        with self._history.handling(stream=stream, event=name, token=event.fence):
            return await self._handle(event, transaction)

    async def _handle(self, event: Received[Job], transaction: Transaction) -> Outcome | None:
        job, name = event.payload, str(event.envelope.event_id)
        await self._stagehand.act(job.script, name, f"react:{event.attempt}")
        if job.fate == "poison":
            die()
        if job.fate == "doomed":
            raise Permanent("it can never be handled")
        await asyncio.sleep(job.work_ms / 1000)
        chance = self._rng.random()
        if chance < self._trouble / 4:
            return Defer.by(timedelta(milliseconds=100), "not yet")
        if job.once and not await transaction.once("verify", name, _ONCE_FOR):
            self._history.write("once_refused", stream=event.envelope.stream, event=name, token=event.fence)
        if chance < self._trouble / 2:
            raise RuntimeError("a bug in a handler")
        if chance < self._trouble:
            raise Transient("bad luck")
        await self._apply(event, transaction)
        return None

    async def _apply(self, event: Received[Job], transaction: Transaction) -> None:
        job = event.payload
        tally = await transaction.get(TALLY.name, job.tally)
        if tally is None:
            tally = Record(kind=TALLY.name, id=job.tally, state="open", doc={"count": 0})
        await transaction.put(replace(tally, doc=_one_more(tally.doc)))
        follow_ups = [
            REACTED.envelope(Job(tally=key or f"{job.tally}+"), stream=stream, partition_key=key)
            for stream, key in job.follow_ups
        ]
        await transaction.publish(*follow_ups)
        facts = {"tally": job.tally, "follow_ups": [describe(envelope) for envelope in follow_ups]}
        await transaction.append(applied(event, self._history.process, **facts))


def _one_more(doc: Mapping[str, Any]) -> dict[str, int]:
    return {"count": doc["count"] + 1}
