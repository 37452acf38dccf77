"""From the type of an event to the code for it: one table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from kingdom.bus.delivery import Delivery
from kingdom.bus.effect import Effect
from kingdom.bus.envelope import Envelope
from kingdom.bus.outcome import Defer, Outcome
from kingdom.bus.payload import EventType
from kingdom.bus.port import Transaction
from kingdom.bus.received import Received
from kingdom.errors import Misconfigured

T = TypeVar("T")
Reaction = Callable[[Received[T], Transaction], Awaitable[Outcome | None]]
_AnyReaction = Callable[[Received[Any], Transaction], Awaitable[Outcome | None]]
# How long an event waits for a deploy that brings its handler.
_NO_HANDLER_WAIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Route(Generic[T]):
    """A handler together with the type that it understands; None means that it takes the raw payload."""

    handler: "Reaction[T] | Effect[T]"
    event_type: EventType[T] | None
    # The kind of the record about the event's aggregate, which is read together with those of other events.
    reads: str | None = None

    def receive(self, delivery: Delivery) -> Received[Any]:
        """Return the delivery as its handler wants to see it."""
        envelope = delivery.envelope
        payload = self.event_type.decode(envelope) if self.event_type else dict(envelope.payload)
        return Received(payload, envelope, delivery.attempt, delivery.token)

    def understands(self, envelope: Envelope) -> bool:
        """Tell whether the envelope is of a version that this code knows."""
        return self.event_type is None or envelope.schema_version <= self.event_type.version


class Dispatcher:
    """Holds the handlers of one process; a handler may be bound to one stream or to all."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str | None, str], Route[Any]] = {}

    def reaction(
        self, event_type: "EventType[Any] | str", *, stream: str | None = None, reads: str | None = None
    ) -> Callable[[_AnyReaction], _AnyReaction]:
        """Register a function that runs inside the transaction which settles its event."""

        def register(handler: _AnyReaction) -> _AnyReaction:
            self._add(event_type, stream, handler, reads)
            return handler

        return register

    def effect(self, event_type: "EventType[Any] | str", effect: Effect[Any], *, stream: str | None = None) -> None:
        """Register an outside call that is never repeated without proof."""
        self._add(event_type, stream, effect)

    def route(self, delivery: Delivery) -> Route[Any] | Defer:
        """Return the handler of a delivery, or Defer while this process has none: never a drop."""
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
            raise Misconfigured(f"{name} has a handler already{f' in {stream}' if stream else ''}")
        self._routes[stream, name] = Route(handler, declared, reads)
