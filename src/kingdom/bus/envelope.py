"""An event as the bus carries it: immutable, self-describing, camelCase on the wire."""

import json
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import field

from kingdom.clock import utc_now
from kingdom.errors import MalformedEvent
from kingdom.ids import FreshId, new_event_id, new_trace_id

# A store of files keeps its own fields under this key of each document.
STORE_KEY = "_kingdom"
# The event that is being handled now.
current_cause: "ContextVar[Envelope | None]" = ContextVar("kingdom_cause", default=None)


def current_trace_id() -> str:
    """Return the trace id of the event that is being handled, or a new trace id."""
    cause = current_cause.get()
    return cause.trace_id if cause else new_trace_id()


class Envelope(msgspec.Struct, frozen=True, kw_only=True, eq=True, rename="camel", gc=False):
    """One event: what happened, to which aggregate, and how to trace it.

    If `stream` is given, only this stream gets the event. Otherwise every stream that subscribes to its type gets a
    copy.
    """

    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = 1
    event_id: UUID = field(default_factory=new_event_id)
    occurred_at: datetime = field(default_factory=utc_now)
    trace_id: str = field(default_factory=current_trace_id)
    owner_id: str = ""
    stream: str | None = None
    partition_key: str | None = None
    aggregate_type: str = ""
    aggregate_id: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.type:
            raise MalformedEvent("an envelope needs a type, such as 'OrderPlaced'")
        if self.attributes and (clash := self.attributes.keys() & _WIRE_NAMES):
            raise MalformedEvent(f"attribute names {sorted(clash)} are reserved for the envelope: rename them")
        # Check all headers together, because this runs for every event and almost every event is valid.
        ids = f"{self.trace_id}{self.owner_id}{self.aggregate_type}{self.aggregate_id}"
        if self.attributes or "\x00" in f"{self.type}{self.stream}{self.partition_key}{ids}":
            self._refuse_nul()

    @property
    def event_id_given(self) -> bool:
        """Return whether the publisher chose the id. If so, the bus also looks for duplicates among ended events."""
        return not isinstance(self.event_id, FreshId)

    def _refuse_nul(self) -> None:
        texts = (self.type, self.trace_id, self.owner_id, self.stream, self.partition_key, self.aggregate_type)
        for text in (*texts, self.aggregate_id, *self.attributes, *self.attributes.values()):
            if text and "\x00" in text:
                raise MalformedEvent(f"a NUL character cannot be stored: {text!r}")

    def log_fields(self) -> dict[str, str]:
        """Return the fields of every log line about this event."""
        return {
            "traceId": self.trace_id,
            "eventId": str(self.event_id),
            "stream": self.stream or "",
            "eventType": self.type,
            "aggregateType": self.aggregate_type,
            "aggregateId": self.aggregate_id,
        }

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a JSON object: camelCase, with the attributes next to the headers."""
        wire: dict[str, Any] = {
            "schemaVersion": self.schema_version,
            "eventId": str(self.event_id),
            "type": self.type,
            "occurredAt": self.occurred_at.isoformat(),
            "traceId": self.trace_id,
            "ownerId": self.owner_id,
        }
        if self.stream is not None:
            wire["stream"] = self.stream
        if self.partition_key is not None:
            wire["partitionKey"] = self.partition_key
        wire |= {"aggregateType": self.aggregate_type, "aggregateId": self.aggregate_id}
        return {**wire, **self.attributes, "payload": dict(self.payload)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Envelope":
        """Read an event from a JSON object. Unknown fields become attributes: texts, or any other value as JSON."""
        if not isinstance(wire, Mapping):
            raise MalformedEvent(f"an event envelope must be a JSON object, not {type(wire).__name__}")
        if not wire.keys() <= _WIRE_NAMES or None in wire.values():
            given = {key: value for key, value in wire.items() if value is not None}
            known = {key: value for key, value in given.items() if key in _WIRE_NAMES}
            extra = {key: _to_text(value) for key, value in given.items() if key not in _WIRE_NAMES}
            wire = {**known, "attributes": extra}
        try:
            return msgspec.convert(wire, cls)
        except msgspec.ValidationError as error:
            raise MalformedEvent(f"not a valid event envelope: {error}") from error


def _to_text(value: object) -> str:
    # Unlike msgspec, this accepts half a surrogate pair. The store refuses such an event later.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# The wire format has no field "attributes": each attribute is a field next to the headers.
_WIRE_NAMES = frozenset({*Envelope.__struct_encode_fields__, STORE_KEY} - {"attributes"})
