"""The calls that the processes under test send to the target of the trial."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kingdom.bus import (
    Absent,
    Accepted,
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Effect,
    Event,
    EventType,
    Outcome,
    Present,
    ReconcileResult,
    Rejected,
    Target,
    Transaction,
    Unclear,
    classify_response,
)
from kingdom.verify.history import History
from kingdom.verify.script import ScriptRunner
from kingdom.verify.target import CALL_TIMEOUT_SECONDS, SETTLES_SECONDS, TargetRequest
from kingdom.verify.workload import (
    CALL_CONFIRMED_LATER,
    CALLS,
    IDEMPOTENCY,
    Job,
    applied_entry,
)

_OK = 200
_ACCEPTED = 202


class _JobCall(Effect[Job]):
    """The effect that sends the call of a job."""

    def __init__(self, history: History, scripts: ScriptRunner, port: int, event_type: EventType[Job]) -> None:
        self.target = Target(
            name=event_type.name,
            idempotency=IDEMPOTENCY[event_type.name],
            calls_per_second=200,
            burst=50,
            failures_to_open=8,
            open_for=timedelta(milliseconds=300),
            settles_after=timedelta(seconds=SETTLES_SECONDS),
        )
        self._history = history
        self._scripts = scripts
        self._port = port

    def key(self, event: Event[Job]) -> str:
        return event.payload.call

    def request(self, event: Event[Job]) -> Mapping[str, Any]:
        job = event.payload
        return {
            "key": job.call,
            "event": str(event.envelope.event_id),
            "stream": event.envelope.stream,
            "work_ms": job.work_ms,
            "answers": list(job.answers),
            "script": job.script,
        }

    async def call(self, attempt: Attempt) -> CallResult:
        facts = {"stream": attempt.request["stream"], "event": attempt.request["event"], "token": attempt.fence}
        with self._history.handling(**facts):
            return await self._send(attempt)

    async def _send(self, attempt: Attempt) -> CallResult:
        await asyncio.sleep(attempt.request["work_ms"] / 1000)
        request = await TargetRequest.connect(self._port)
        await self._scripts.run(attempt.request["script"], attempt.request["event"], f"send:{attempt.number}")
        request.send("/calls", self._body(attempt))
        self._history.write("sent", key=attempt.request["key"], identifier=attempt.identifier, fence=attempt.fence)
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            status, headers, body = await request.response()
        self._history.write("answered", key=attempt.request["key"], identifier=attempt.identifier, status=status)
        return Accepted() if status == _ACCEPTED else classify_response(status, headers, body)

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        request = await TargetRequest.connect(self._port)
        request.send("/findings", self._body(attempt))
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            status, _, body = await request.response()
        if status != _OK:
            return Unclear(f"HTTP {status}")
        self._history.write(
            "reconciled", key=attempt.request["key"], identifier=attempt.identifier, happened=body["happened"]
        )
        return Present() if body["happened"] else Absent()

    async def conclude(self, event: Event[Job], answer: Acked | Rejected, transaction: Transaction) -> Outcome:
        await transaction.append(applied_entry(event, self._history.process, call=event.payload.call))
        return await super().conclude(event, answer, transaction)

    def _body(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "key": attempt.request["key"],
            "event": attempt.request["event"],
            "stream": attempt.request["stream"],
            "answers": attempt.request["answers"],
            "identifier": attempt.identifier,
            "fence": attempt.fence,
            "idempotency": self.target.idempotency.value,
            "confirmed_later": self.target.name == CALL_CONFIRMED_LATER.name,
        }


def register_calls(dispatcher: Dispatcher, history: History, scripts: ScriptRunner, port: int) -> None:
    """Register an effect for every type of event that calls the target."""
    for event_type in CALLS:
        dispatcher.effect(event_type, _JobCall(history, scripts, port, event_type))
