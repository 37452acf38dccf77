"""Records: durable objects with a version and a state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kingdom.bus.envelope import Envelope
from kingdom.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One durable object; `version` is the one that was read, 0 for a record that does not exist yet."""

    kind: str
    id: str
    state: str
    version: int = 0
    owner: str | None = None
    due_at: datetime | None = None
    doc: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """How a document that a person drops into a directory becomes a record, where the store is one of files.

    `read` checks a document and returns it as a new record in `state`, or raises MalformedEvent with a reason for that
    person; `announce` returns the event that tells of the record. Both are pure.
    """

    state: str
    read: Callable[[Mapping[str, Any]], Record]
    announce: Callable[[Record], Envelope]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """A family of records: its states, where files keep each state, and how long finished ones stay.

    `directories` maps every allowed state to a directory; states in `final` start the retention clock.
    """

    name: str
    directories: Mapping[str, str]
    final: frozenset[str] = frozenset()
    retention: timedelta | None = None
    adoption: Adoption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which records to find, ordered by due time where `due_by` is given, else by id; `after` pages by id."""

    kind: str
    state: str | None = None
    owner: str | None = None
    due_by: datetime | None = None
    after: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if self.due_by is not None and self.after is not None:
            raise Misconfigured("a query by due time cannot be paged by id: ask again after what was due is handled")

    def matches(self, record: Record) -> bool:
        """Tell whether a record belongs to the answer."""
        return (
            record.kind == self.kind
            and (self.state is None or record.state == self.state)
            and (self.owner is None or record.owner == self.owner)
            and (self.due_by is None or (record.due_at is not None and record.due_at <= self.due_by))
            and (self.after is None or record.id > self.after)
        )
