"""Records: durable objects with a version and a state."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.errors import MalformedEvent, Misconfigured, Unreadable

_T = TypeVar("_T")
_SURROGATE = re.compile("[\ud800-\udfff]")
# From here on a float has no fraction and is written with an exponent, which a store may return as an int.
_FLOAT_END = 1e16
# Python refuses to write or read longer ones.
_INT_END = 10**4000
# Where something in a document cannot be stored, and why.
Flaw = tuple[str, str]
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


def refuse_unstorable(what: str, document: Mapping[str, Any]) -> None:
    """Raise MalformedEvent where a document would not come back from every store as it is."""
    try:
        flaw = _CHECKS.get(type(document), _other_flaw)(document)
    except RecursionError:
        flaw = "", "it nests too deep; flatten it"
    if flaw:
        path, why = flaw
        raise MalformedEvent(f"{what}{path} cannot be stored: {why}")


def _text_flaw(text: str) -> Flaw | None:
    if "\0" in text:
        return "", "it holds a NUL character; remove it"
    if not text.isascii() and _SURROGATE.search(text):
        return "", "it holds half a surrogate pair, which is no character; remove it"
    return None


def _int_flaw(number: int) -> Flaw | None:
    return None if -_INT_END < number < _INT_END else ("", "the number has more than 4000 digits; send it as text")


def _float_flaw(number: float) -> Flaw | None:
    # What is not a number is not in between either.
    if -_FLOAT_END < number < _FLOAT_END:
        return None
    return "", f"{number} is no number that every store returns; send one below 1e16, an int, or text"


def _object_flaw(fields: Mapping[Any, Any]) -> Flaw | None:
    for name, part in fields.items():
        if type(name) is not str:
            return f"[{name!r}]", "the name of a field must be text"
        if flaw := _text_flaw(name) or _CHECKS.get(type(part), _other_flaw)(part):
            return f".{name}{flaw[0]}", flaw[1]
    return None


def _array_flaw(items: Sequence[Any]) -> Flaw | None:
    for index, part in enumerate(items):
        if flaw := _CHECKS.get(type(part), _other_flaw)(part):
            return f"[{index}]{flaw[0]}", flaw[1]
    return None


def _other_flaw(value: Any) -> Flaw | None:
    if isinstance(value, Enum):
        return _CHECKS.get(type(value.value), _other_flaw)(value.value)
    if isinstance(value, Mapping):
        return _object_flaw(value)
    return "", f"{type(value).__name__} is no type of JSON; convert it first, for instance with msgspec.to_builtins"


# A tuple comes back as a list, an Enum as its value.
_CHECKS: dict[type, Callable[[Any], Flaw | None]] = {
    str: _text_flaw,
    int: _int_flaw,
    float: _float_flaw,
    dict: _object_flaw,
    list: _array_flaw,
    tuple: _array_flaw,
    bool: lambda _: None,
    type(None): lambda _: None,
}


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
