"""Records: durable objects with a version and a state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.errors import Misconfigured, Unreadable

_T = TypeVar("_T")
# Takes note of the id of what cannot be read, and why.
LeaveOut = Callable[[str, Unreadable], None]


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


def read_document(document: Mapping[str, Any], kind: type[_T]) -> _T:
    """Return what a stored document describes; raises Unreadable."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        what = document.get("id") or f"a stored {kind.__name__.strip('_')}"
        raise Unreadable(
            f"{what} cannot be read by this version: {error}; use the version that wrote it, or mend what somebody has"
            " changed"
        ) from error


def hide(_record_id: str, _error: Unreadable) -> None:
    """Leave a record out without a word."""


def readable(records: Iterable[Record], kind: type[_T], leave_out: LeaveOut = hide) -> Iterator[_T]:
    """Yield what records hold; one that cannot be read is left out, and does not hide the others."""
    for record in records:
        try:
            yield read_document(record.doc, kind)
        except Unreadable as error:
            leave_out(record.id, error)


def storable(value: Any) -> Any:
    """Return what somebody outside wrote, a text or a document, as every store can keep it."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        case Mapping():
            return {storable(name): storable(part) for name, part in value.items()}
        case list() | tuple():
            return [storable(part) for part in value]
    return value


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

    `directories` maps every allowed state to a directory; states in `final` start the retention clock, but only for a
    document that holds all of `final_when`. While an event that the document lists under `kept_for` is open or dead,
    the record stays.
    """

    name: str
    directories: Mapping[str, str]
    final: frozenset[str] = frozenset()
    retention: timedelta | None = None
    adoption: Adoption | None = None
    final_when: Mapping[str, Any] = field(default_factory=dict)
    kept_for: str | None = None

    def is_final(self, state: str, doc: Mapping[str, Any]) -> bool:
        """Tell whether nothing more is expected of a record."""
        return state in self.final and self.final_when.items() <= doc.items()


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
