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
# A float of this size or more is written without a fraction, so a store may return it as an int.
_FLOAT_END = 1e16
# Python refuses to convert numbers with more than 4300 digits to or from text.
_INT_END = 10**4000
# A place in a document with a value that cannot be stored, and the reason.
Flaw = tuple[str, str]
# A store has this many columns for the values of indexes.
INDEXES_MAX = 3
IndexValues = tuple[str | None, str | None, str | None]
_NO_VALUES: IndexValues = (None, None, None)
# A function that is called with the id of a record that cannot be read, and the error.
OnUnreadable = Callable[[str, Unreadable], None]


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One durable object. `version` is the version that was read, or 0 for a record that is not stored yet.

    Records can be found by `due_at`, and by the values in `indexed`, whose names are the indexes of the kind.
    """

    kind: str
    id: str
    state: str
    version: int = 0
    indexed: Mapping[str, str] = msgspec.field(default_factory=dict)
    due_at: datetime | None = None
    doc: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def replace(self, **changes: Any) -> "Record":
        """Return a copy of the record with some fields changed."""
        return msgspec.structs.replace(self, **changes)


def read_document(document: Mapping[str, Any], kind: type[_T]) -> _T:
    """Return a stored document as an object of the class `kind`, or raise Unreadable."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        what = document.get("id") or f"a stored {kind.__name__.strip('_')}"
        raise Unreadable(
            f"{what} cannot be read by this version: {error}; use the version that wrote it, or undo what was changed"
            " by hand"
        ) from error


def ignore_unreadable(_record_id: str, _error: Unreadable) -> None:
    """Ignore an unreadable record."""


def read_documents(
    records: Iterable[Record], kind: type[_T], on_unreadable: OnUnreadable = ignore_unreadable
) -> Iterator[_T]:
    """Yield the documents of records. Unreadable records are reported to `on_unreadable` and skipped."""
    for record in records:
        try:
            yield read_document(record.doc, kind)
        except Unreadable as error:
            on_unreadable(record.id, error)


def to_storable(value: Any) -> Any:
    """Return a text or document in which the characters that a store cannot keep are replaced."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        case Mapping():
            return {to_storable(name): to_storable(part) for name, part in value.items()}
        case list() | tuple():
            return [to_storable(part) for part in value]
    return value


def refuse_unstorable(what: str, document: Mapping[str, Any]) -> None:
    """Raise MalformedEvent if a document contains something that not every store returns unchanged."""
    try:
        flaw = _CHECKS.get(type(document), _other_flaw)(document)
    except RecursionError:
        flaw = "", "it is nested too deeply; flatten it"
    if flaw:
        path, why = flaw
        raise MalformedEvent(f"{what}{path} cannot be stored: {why}")


def refuse_unstorable_event(envelope: Envelope) -> None:
    """Raise MalformedEvent if the content of an event is something that not every store returns unchanged."""
    refuse_unstorable(f"{envelope.type}: payload", envelope.payload)
    if envelope.attributes:
        refuse_unstorable(f"{envelope.type}: attributes", envelope.attributes)


def _text_flaw(text: str) -> Flaw | None:
    if "\0" in text:
        return "", "it holds a NUL character; remove it"
    if not text.isascii() and _SURROGATE.search(text):
        return "", "it holds half a surrogate pair, which is not a character; remove it"
    return None


def _int_flaw(number: int) -> Flaw | None:
    return None if -_INT_END < number < _INT_END else ("", "the number has more than 4000 digits; send it as text")


def _float_flaw(number: float) -> Flaw | None:
    # The comparison is also false for NaN.
    if -_FLOAT_END < number < _FLOAT_END:
        return None
    return "", f"not every store returns {number} unchanged; send a number below 1e16, an int, or text"


def _object_flaw(fields: Mapping[Any, Any]) -> Flaw | None:
    for name, part in fields.items():
        if type(name) is not str:
            return f"[{name!r}]", "the name of a field must be text"
        # Most names and texts are plain ASCII. Checking them here saves two calls for each field.
        if type(part) is str and "\0" not in part and "\0" not in name and part.isascii() and name.isascii():
            continue
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
    return "", f"{type(value).__name__} is not a JSON type; convert it first, for instance with msgspec.to_builtins"


# Tuples and Enums are allowed too, although a store may return a tuple as a list, and an Enum as its value.
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
    """How a store of files creates a record from a document that a person put into one of its directories.

    `read` returns the document as a new record in `state`, or raises MalformedEvent with a reason for the person.
    `announce` returns the event that announces the record. Neither function does any I/O.
    """

    state: str
    read: Callable[[Mapping[str, Any]], Record]
    announce: Callable[[Record], Envelope]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """A kind of record: its states, the directory of each state in a store of files, and its retention.

    `directories` maps every allowed state to a directory. A record is finished if its state is in `final` and its
    document contains the fields and values of `final_when`. It is removed when it has been finished for `retention`.
    `kept_for` is the name of a document field with event ids: while one of these events is open or dead, the record
    stays. `indexes` are the names by which records can be listed. A store keeps the values in this order, so a later
    version may only append names.
    """

    name: str
    directories: Mapping[str, str]
    final: frozenset[str] = frozenset()
    retention: timedelta | None = None
    adoption: Adoption | None = None
    final_when: Mapping[str, Any] = field(default_factory=dict)
    kept_for: str | None = None
    indexes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.indexes) > INDEXES_MAX or len(set(self.indexes)) < len(self.indexes):
            raise Misconfigured(
                f"{self.name} has the indexes {', '.join(self.indexes)}: declare at most {INDEXES_MAX}, each one once"
            )

    def index_values(self, indexed: Mapping[str, str]) -> IndexValues:
        """Return the values of a record in the order of the indexes."""
        if not indexed:
            return _NO_VALUES
        for name in indexed:
            self.index_number(name)
        first, second, third, *_ = *map(indexed.get, self.indexes), *_NO_VALUES
        return first, second, third

    def name_values(self, values: IndexValues) -> dict[str, str]:
        """Return the values of a record by the names of their indexes."""
        return {name: value for name, value in zip(self.indexes, values, strict=False) if value is not None}

    def index_number(self, index: str) -> int:
        """Return the position of an index, starting at 1. Raise Misconfigured if there is no such index."""
        if index not in self.indexes:
            raise Misconfigured(f"{self.name} has no index {index!r}; indexes: {', '.join(self.indexes) or 'none'}")
        return self.indexes.index(index) + 1

    def is_final(self, state: str, doc: Mapping[str, Any]) -> bool:
        """Return whether a record is finished."""
        return state in self.final and self.final_when.items() <= doc.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """Selects records. They are ordered by due time if `due_by` is given, else by id, ascending or `descending`.

    `index` and `value` select the records that have this value in an index of their kind. `after` is the last id of the
    previous page.
    """

    kind: str
    state: str | None = None
    index: str | None = None
    value: str | None = None
    due_by: datetime | None = None
    after: str | None = None
    limit: int = 100
    descending: bool = False

    def __post_init__(self) -> None:
        if self.due_by is not None and (self.after is not None or self.descending):
            raise Misconfigured("a query by due time cannot be paged by id: handle the due records, then query again")
        if (self.index is None) != (self.value is None):
            raise Misconfigured(
                f"a query of {self.kind} has an index or a value without the other: give both, or neither"
            )

    def matches(self, record: Record) -> bool:
        """Return whether a record matches the query."""
        return (
            record.kind == self.kind
            and (self.state is None or record.state == self.state)
            and (self.index is None or record.indexed.get(self.index) == self.value)
            and (self.due_by is None or (record.due_at is not None and record.due_at <= self.due_by))
            and (self.after is None or (record.id < self.after if self.descending else record.id > self.after))
        )
