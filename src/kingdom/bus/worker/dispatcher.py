"""The table from event types to handlers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import Effect
from kingdom.bus.envelope import Envelope
from kingdom.bus.event import Event
from kingdom.bus.outcome import Defer, Outcome
from kingdom.bus.payload import EventType
from kingdom.bus.port import Transaction
from kingdom.errors import Misconfigured

T = TypeVar("T")
Reaction = Callable[[Event[T], Transaction], Awaitable[Outcome | None]]
_AnyReaction = Callable[[Event[Any], Transaction], Awaitable[Outcome | None]]
# How long an event is deferred if this process has no handler for it. This happens during a rolling deploy.
_NO_HANDLER_WAIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class HandlerRoute(Generic[T]):
    """A handler and the event type that it expects. If the type is None, the handler gets the raw payload."""

    handler: "Reaction[T] | Effect[T]"
    event_type: EventType[T] | None
    # The kind of a record that the handler reads by the aggregate id of its event. A group reads them in one step.
    reads: str | None = None

    def receive(self, delivery: Delivery) -> Event[Any]:
        """Return the event as its handler receives it."""
        envelope = delivery.envelope
        payload = self.event_type.decode(envelope) if self.event_type else dict(envelope.payload)
        return Event(payload, envelope, delivery.attempt, delivery.token)

    def understands(self, envelope: Envelope) -> bool:
        """Return whether the handler can read the schema version of the envelope."""
        return self.event_type is None or envelope.schema_version <= self.event_type.version


class Dispatcher:
    """The handlers of one process. A handler receives the events of one stream, or of all streams."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str | None, str], HandlerRoute[Any]] = {}

    def reaction(
        self, event_type: "EventType[Any] | str", *, stream: str | None = None, reads: str | None = None
    ) -> Callable[[_AnyReaction], _AnyReaction]:
        """Register a function that runs in the transaction that settles its event. HandlerRoute explains `reads`."""

        def register(handler: _AnyReaction) -> _AnyReaction:
            self._add(event_type, stream, handler, reads)
            return handler

        return register

    def effect(self, event_type: "EventType[Any] | str", effect: Effect[Any], *, stream: str | None = None) -> None:
        """Register a call to an outside system. It is never repeated without proof that it did not happen."""
        self._add(event_type, stream, effect)

    def route(self, delivery: Delivery) -> HandlerRoute[Any] | Defer:
        """Return the handler of a delivery, or Defer if this process has no handler for it."""
        envelope = delivery.envelope
        route = self._routes.get((delivery.stream, envelope.type)) or self._routes.get((None, envelope.type))
        if route is None:
            return Defer.by(_NO_HANDLER_WAIT, f"no handler for {envelope.type} in this process")
        if not route.understands(envelope):
            return Defer.by(
                _NO_HANDLER_WAIT,
                f"{envelope.type} has schemaVersion {envelope.schema_version}, newer than this code",
            )
        return route

    def _add(
        self, event_type: "EventType[Any] | str", stream: str | None, handler: Any, reads: str | None = None
    ) -> None:
        declared = event_type if isinstance(event_type, EventType) else None
        name = declared.name if declared else str(event_type)
        if (stream, name) in self._routes:
            raise Misconfigured(f"{name} already has a handler{f' in {stream}' if stream else ''}: remove one of them")
        self._routes[stream, name] = HandlerRoute(handler, declared, reads)
