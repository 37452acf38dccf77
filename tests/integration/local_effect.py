"""An effect whose call is a function of the test."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kingdom.bus import Attempt, CallResult, Effect, Event, ReconcileResult, Target, Unclear

Call = Callable[[Attempt], Awaitable[CallResult]]
Reconcile = Callable[[Attempt], Awaitable[ReconcileResult]]


async def reconcile_as_unclear(attempt: Attempt) -> ReconcileResult:
    return Unclear(f"it is unknown what became of {attempt.identifier}")


class LocalEffect(Effect[dict[str, Any]]):
    """One effect per event. The payload of the event is the request."""

    def __init__(
        self,
        call: Call,
        reconcile: Reconcile = reconcile_as_unclear,
        target: Target | None = None,
        key: str | None = None,
    ) -> None:
        self.target = target or Target(name="local")
        self._call = call
        self._reconcile = reconcile
        self._key = key

    def key(self, event: Event[dict[str, Any]]) -> str:
        return self._key or str(event.envelope.event_id)

    def request(self, event: Event[dict[str, Any]]) -> Mapping[str, Any]:
        return event.payload

    async def call(self, attempt: Attempt) -> CallResult:
        return await self._call(attempt)

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        return await self._reconcile(attempt)
