"""An effect that calls the HTTP target of the tests; as a program, a worker that stops before or after its call.

python -m tests.integration.http_effect DSN {"url": …, "idempotency": …, "hang": "before" | "after"}
"""

import asyncio
import json
import logging
import signal
import ssl
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any

import httpx

from kingdom.bus import (
    Absent,
    Accepted,
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Effect,
    Envelope,
    Event,
    Idempotency,
    Outcome,
    Present,
    ReconcileResult,
    Rejected,
    RetryPolicy,
    Stream,
    Target,
    Transaction,
    Unclear,
    Worker,
    classify_response,
)
from kingdom.log_output import configure_logs
from tests.integration.processes import say
from tests.integration.running import open_bus, stream
from tests.patience import PATIENCE_SECONDS

PATIENT = httpx.Timeout(PATIENCE_SECONDS)
# Lets a hanging child continue.
GO_ON = signal.SIGUSR1


def calls(*, attempts: int = 10) -> Stream:
    """Return the stream of Call as parent and child declare it."""
    policy = RetryPolicy(base=timedelta(milliseconds=20), max_attempts=attempts)
    return stream("calls", "Call", retry=policy)


@cache
def tls() -> ssl.SSLContext:
    """Return one TLS context for all clients, because creating a context takes longer than a call."""
    return ssl.create_default_context()


def call(name: str, **payload: Any) -> Envelope:
    return Envelope(type="Call", payload={"name": name, **payload})


class HttpEffect(Effect[dict[str, Any]]):
    """Posts the payload. A successful call is published as Made, in the transaction that records it."""

    def __init__(self, url: str, target: Target, hang: str | None = None) -> None:
        self.target = target
        self._url = url
        self._hang = hang

    def key(self, event: Event[dict[str, Any]]) -> str:
        return str(event.payload["name"])

    def request(self, event: Event[dict[str, Any]]) -> Mapping[str, Any]:
        return event.payload

    async def call(self, attempt: Attempt) -> CallResult:
        headers = {"identifier": attempt.identifier, "fence": str(attempt.fence)}
        if self._hang:
            response = self._post_between_stops(attempt, headers)
        else:
            async with httpx.AsyncClient(timeout=PATIENT, verify=tls()) as client:
                response = await client.post(f"{self._url}/do", json=dict(attempt.request), headers=headers)
        if response.status_code == httpx.codes.ACCEPTED:
            return Accepted()
        return classify_response(response.status_code, response.headers, response.json())

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        async with httpx.AsyncClient(timeout=PATIENT, verify=tls()) as client:
            headers = {"fence": str(attempt.fence)}
            response = await client.get(
                f"{self._url}/done/{attempt.request['name']}/{attempt.identifier}", headers=headers
            )
        match response.status_code:
            case httpx.codes.OK:
                return Present(response.json())
            case httpx.codes.NOT_FOUND:
                return Absent()
        return Unclear(f"HTTP {response.status_code}")

    async def conclude(
        self, event: Event[dict[str, Any]], answer: Acked | Rejected, transaction: Transaction
    ) -> Outcome:
        await transaction.publish(Envelope(type="Made", payload={"name": event.payload["name"]}))
        return await super().conclude(event, answer, transaction)

    def _post_between_stops(self, attempt: Attempt, headers: Mapping[str, str]) -> httpx.Response:
        """Block the event loop, so that only a kill or a stop of this process can prevent the call."""
        self._stop_here("before")
        response = httpx.post(f"{self._url}/do", json=dict(attempt.request), headers=headers, timeout=PATIENT)
        self._stop_here("after")
        return response

    def _stop_here(self, moment: str) -> None:
        if self._hang == moment:
            say(moment)
            signal.sigwait({GO_ON})


async def work(dsn: str, options: dict[str, Any]) -> None:
    dispatcher = Dispatcher()
    target = Target(name="http", idempotency=Idempotency[options["idempotency"]])
    dispatcher.effect("Call", HttpEffect(options["url"], target, options["hang"]))
    async with open_bus(dsn, calls(), stream("made", "Made")) as bus:
        worker = asyncio.create_task(Worker(bus, dispatcher, ["calls"], poll=timedelta(milliseconds=20)).run())
        say("ready")
        await worker


if __name__ == "__main__":
    configure_logs(json=True, level=logging.ERROR)
    # Set the mask before any thread starts, so that each thread inherits it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {GO_ON})
    asyncio.run(work(sys.argv[1], json.loads(sys.argv[2])))
