"""Typed payloads with versions. Events of older schema versions can still be read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.errors import MalformedEvent, Misconfigured

T = TypeVar("T")
Upcast = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType(Generic[T]):
    """A type of event: its name, the class of its payload, and functions that convert payloads of older versions.

    `upcasts[n]` converts a payload of version n to version n + 1.
    """

    name: str
    payload: type[T]
    version: int = 1
    upcasts: Mapping[int, Upcast] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = set(range(1, self.version)) - set(self.upcasts)
        if missing:
            raise Misconfigured(
                f"{self.name} version {self.version} lacks upcasts from the versions {sorted(missing)}: add them"
            )

    def envelope(self, payload: T, **headers: Any) -> Envelope:
        """Return an envelope with this payload and the current schema version."""
        fields = msgspec.to_builtins(payload)
        return Envelope(type=self.name, schema_version=self.version, payload=fields, **headers)

    def decode(self, envelope: Envelope) -> T:
        """Return the payload of an envelope, converted to the current version."""
        payload = dict(envelope.payload)
        try:
            for version in range(envelope.schema_version, self.version):
                payload = self.upcasts[version](payload)
            return msgspec.convert(payload, self.payload)
        except (msgspec.ValidationError, LookupError, TypeError, ValueError) as error:
            raise MalformedEvent(
                f"payload of {self.name} (schemaVersion {envelope.schema_version}) does not fit version "
                f"{self.version}: {error}"
            ) from error
