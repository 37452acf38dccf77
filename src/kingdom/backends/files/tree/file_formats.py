"""The content of event and record files: JSON that people can read, with the metadata of the store under one key."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from kingdom.backends.files.journal.entry import PROCESSING, EventRow, Lease, RecordHeader
from kingdom.bus.envelope import STORE_KEY, Envelope
from kingdom.bus.record import Record, RecordKind
from kingdom.errors import MalformedEvent

_encode = msgspec.json.Encoder().encode
_OTHER_EVENT = "the file contains another eventId than {}: restore the eventId"
T = TypeVar("T")


def safe_decoder(decoder: msgspec.json.Decoder[T]) -> Callable[[bytes], T]:
    """Return a decoder that also raises DecodeError for invalid Unicode and for too deep nesting."""

    def decode(content: bytes) -> T:
        try:
            return decoder.decode(content)
        except (RecursionError, UnicodeError) as error:
            raise msgspec.DecodeError(str(error)) from error

    return decode


decode_document = safe_decoder(msgspec.json.Decoder(dict[str, Any]))
decode_lease = safe_decoder(msgspec.json.Decoder(Lease))
_LATEST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
# The store wraps a document in at most this many levels of nesting.
_WRAPPING = 20
# A document with at most this many brackets cannot be nested too deep.
_BRACKETS = 200


class _EventError(msgspec.Struct):
    code: str | None
    message: str | None


class EventMetadata(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """The state of an event as its file shows it. `attempts` does not count an attempt that is running.

    `event_id_given` is true if the publisher chose the event id, and false if the bus generated it.
    """

    position: int
    created_at: datetime
    max_attempts: int
    attempts: int = 0
    ordered: bool = False
    due_at: datetime | None = None
    due_set_at: datetime | None = None
    not_before: datetime | None = None
    crashes: int = 0
    # The token of the last lease that has ended.
    token: int = 0
    last_attempt_at: datetime | None = None
    died_at: datetime | None = None
    blocks_its_key: bool = False
    cancel_requested: bool = False
    error: _EventError | None = None
    history: list[dict[str, Any]] | None = None
    event_id_given: bool = False


class _EventFile(
    msgspec.Struct, rename={"event_id": "eventId", "partition_key": "partitionKey", "metadata": STORE_KEY}
):
    event_id: str
    metadata: EventMetadata
    partition_key: str | None = None


class _PlainEvent(
    msgspec.Struct,
    rename={
        **dict(zip(Envelope.__struct_fields__, Envelope.__struct_encode_fields__, strict=True)),
        "metadata": STORE_KEY,
    },
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """An event without attributes. This is the common case, and it is read and written in one fast step."""

    schema_version: int
    event_id: str
    type: str
    occurred_at: datetime
    trace_id: str
    owner_id: str
    aggregate_type: str
    aggregate_id: str
    payload: dict[str, Any]
    stream: str | None = None
    partition_key: str | None = None
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RecordMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    version: int
    state: str
    created_at: datetime
    updated_at: datetime
    id: str | None = None
    index_1: str | None = msgspec.field(name="owner", default=None)
    index_2: str | None = None
    index_3: str | None = None
    due_at: datetime | None = None
    ended_at: datetime | None = None


class _RecordFile(msgspec.Struct, rename={"metadata": STORE_KEY}):
    metadata: _RecordMetadata


class ArchiveLine(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """One line of an archive file. `n` is the offset of the journal entry in which the event ended."""

    n: int
    position: int
    status: str
    token: int
    attempts: int
    max_attempts: int
    crashes: int
    ordered: bool
    created_at: datetime
    ended_at: datetime
    event: dict[str, Any]
    last_attempt_at: datetime | None = None
    error: _EventError | None = None
    history: list[dict[str, Any]] | None = None
    event_id_given: bool = False


decode_archive_line = safe_decoder(msgspec.json.Decoder(ArchiveLine))
_read_event = safe_decoder(msgspec.json.Decoder(_EventFile))
_read_plain = safe_decoder(msgspec.json.Decoder(_PlainEvent))
_read_record = safe_decoder(msgspec.json.Decoder(_RecordFile))


def encode_body(envelope: Envelope, stream: str) -> msgspec.Raw:
    """Return an envelope as JSON. Each stream that gets the event stores its own copy, which names the stream."""
    if envelope.attributes:
        return msgspec.Raw(_encode({**envelope.to_wire(), "stream": stream}))
    plain = _PlainEvent(
        schema_version=envelope.schema_version,
        event_id=envelope.event_id,  # type: ignore[arg-type] # encoded as text
        type=envelope.type,
        occurred_at=envelope.occurred_at,
        trace_id=envelope.trace_id,
        owner_id=envelope.owner_id,
        aggregate_type=envelope.aggregate_type,
        aggregate_id=envelope.aggregate_id,
        payload=envelope.payload,  # type: ignore[arg-type] # encoded as an object
        stream=stream,
        partition_key=envelope.partition_key,
    )
    return msgspec.Raw(_encode(plain))


def encode_archive_line(offset: int, row: EventRow, status: str, body: msgspec.Raw) -> msgspec.Raw:
    """Return the archive line of an event that has ended."""
    line = ArchiveLine(
        n=offset,
        position=row.position,
        status=status,
        token=row.token,
        attempts=row.attempt,
        max_attempts=row.max_attempts,
        crashes=row.crash_count,
        ordered=row.key is not None,
        created_at=to_datetime(row.created_at),
        ended_at=to_datetime(row.processed_at or 0),
        last_attempt_at=to_datetime_or_none(row.last_attempt_at),
        error=_EventError(row.error_code, row.error_message) if row.error_code else None,
        history=row.history,
        event_id_given=row.event_id_given,
        event=body,  # type: ignore[arg-type] # already encoded
    )
    return msgspec.Raw(_encode(line))


def encode_event_file(row: EventRow, body: bytes) -> bytes:
    """Return the content of an event file."""
    text = b'%b,"%b":%b}' % (bytes(body)[:-1], STORE_KEY.encode(), _encode(metadata_of(row)))
    return msgspec.json.format(text, indent=2) + b"\n"


def metadata_of(row: EventRow) -> EventMetadata:
    """Return the state of an event for its file."""
    return EventMetadata(
        position=row.position,
        created_at=to_datetime(row.created_at),
        max_attempts=row.max_attempts,
        attempts=row.attempt - (row.status == PROCESSING),
        ordered=row.key is not None,
        due_at=to_datetime_or_none(row.due),
        due_set_at=to_datetime_or_none(row.due_set_at),
        not_before=to_datetime_or_none(row.not_before),
        crashes=row.crash_count,
        token=row.token,
        last_attempt_at=to_datetime_or_none(row.last_attempt_at),
        died_at=to_datetime_or_none(row.processed_at),
        blocks_its_key=row.blocks,
        cancel_requested=row.cancel_requested,
        error=_EventError(row.error_code, row.error_message) if row.error_code else None,
        history=row.history,
        event_id_given=row.event_id_given,
    )


def decode_row(stream: str, status: str, content: bytes) -> EventRow:
    """Return the row of an event from its file; raise MsgspecError if the file is damaged."""
    file = _read_event(content)
    known = file.metadata
    return EventRow(
        stream=stream,
        position=known.position,
        event_id=file.event_id,
        key=file.partition_key if known.ordered else None,
        status=status,
        due=known.due_at.timestamp() if known.due_at else None,
        created_at=known.created_at.timestamp(),
        max_attempts=known.max_attempts,
        attempt=known.attempts,
        crash_count=known.crashes,
        token=known.token,
        not_before=known.not_before.timestamp() if known.not_before else None,
        last_attempt_at=known.last_attempt_at.timestamp() if known.last_attempt_at else None,
        processed_at=known.died_at.timestamp() if known.died_at else None,
        cancel_requested=known.cancel_requested,
        blocks=known.blocks_its_key,
        error_code=known.error.code if known.error else None,
        error_message=known.error.message if known.error else None,
        history=known.history,
        due_set_at=known.due_set_at.timestamp() if known.due_set_at else None,
        event_id_given=known.event_id_given,
    )


def decode_body(row: EventRow, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    """Return the envelope and the JSON of an event from its file, which a person may have edited."""
    try:
        return _read_plain_body(row, content)
    except msgspec.MsgspecError:
        # The event has attributes, was edited, or is damaged.
        return _read_any_body(row, content)


def _read_plain_body(row: EventRow, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    plain = _read_plain(content)
    if plain.event_id != row.event_id:
        raise MalformedEvent(_OTHER_EVENT.format(row.event_id))
    # Only the store may change the stream and the key of an ordered event.
    plain.stream = row.stream
    if row.key is not None:
        plain.partition_key = row.key
    plain.metadata = msgspec.UNSET
    envelope = Envelope(
        type=plain.type,
        payload=plain.payload,
        schema_version=plain.schema_version,
        event_id=msgspec.convert(plain.event_id, UUID),
        occurred_at=plain.occurred_at,
        trace_id=plain.trace_id,
        owner_id=plain.owner_id,
        stream=plain.stream,
        partition_key=plain.partition_key,
        aggregate_type=plain.aggregate_type,
        aggregate_id=plain.aggregate_id,
    )
    return envelope, msgspec.Raw(_encode(plain))


def _read_any_body(row: EventRow, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    try:
        wire = decode_document(content)
    except msgspec.MsgspecError as error:
        raise MalformedEvent(f"its file is not a JSON object: {error}") from error
    wire.pop(STORE_KEY, None)
    if str(wire.get("eventId")) != row.event_id:
        raise MalformedEvent(_OTHER_EVENT.format(row.event_id))
    wire["stream"] = row.stream
    if row.key is not None:
        wire["partitionKey"] = row.key
    return Envelope.from_wire(wire), msgspec.Raw(_encode(wire))


def encode_record_file(header: RecordHeader, doc: bytes, *, id_in_name: bool) -> bytes:
    """Return the content of a record file: the document, with the metadata of the store under one key."""
    metadata = _RecordMetadata(
        id=None if id_in_name else header.id,
        version=header.version,
        state=header.state,
        index_1=header.index_1,
        index_2=header.index_2,
        index_3=header.index_3,
        due_at=to_datetime_or_none(header.due_at),
        created_at=to_datetime(header.created_at),
        updated_at=to_datetime(header.updated_at),
        ended_at=to_datetime_or_none(header.ended_at),
    )
    start = bytes(doc)[:-1]
    comma = b"," if start != b"{" else b""
    text = b'%b%b"%b":%b}' % (start, comma, STORE_KEY.encode(), _encode(metadata))
    return msgspec.json.format(text, indent=2) + b"\n"


def decode_header(kind: str, name: str | None, content: bytes) -> RecordHeader:
    """Return the header of a record from its file; raise MsgspecError if the file is damaged."""
    known = _read_record(content).metadata
    return RecordHeader(
        kind=kind,
        id=known.id or name or "",
        version=known.version,
        state=known.state,
        index_1=known.index_1,
        index_2=known.index_2,
        index_3=known.index_3,
        due_at=known.due_at.timestamp() if known.due_at else None,
        created_at=known.created_at.timestamp(),
        updated_at=known.updated_at.timestamp(),
        ended_at=known.ended_at.timestamp() if known.ended_at else None,
    )


def decode_record(kind: RecordKind, header: RecordHeader, content: bytes) -> Record:
    """Return a record of a kind from its header and the content of its file."""
    doc = decode_document(content)
    doc.pop(STORE_KEY, None)
    return Record(
        kind=header.kind,
        id=header.id,
        state=header.state,
        version=header.version,
        indexed=kind.name_values(header.index_values),
        due_at=to_datetime_or_none(header.due_at),
        doc=doc,
    )


def encode_document(doc: Mapping[str, Any]) -> msgspec.Raw:
    """Return the document of a record as JSON."""
    return msgspec.Raw(_encode(doc))


def refuse_deep_nesting(text: bytes) -> None:
    """Refuse JSON that is nested too deep to be read again."""
    if text.count(b"[") + text.count(b"{") > _BRACKETS:
        try:
            msgspec.json.decode(b"[" * _WRAPPING + text + b"]" * _WRAPPING)
        except (RecursionError, msgspec.DecodeError) as error:
            raise MalformedEvent("the JSON is nested too deep to be stored: flatten it") from error


@lru_cache(maxsize=256)
def to_datetime(seconds: float) -> datetime:
    """Return seconds since 1970 as a datetime. A time that is too late becomes the latest possible datetime."""
    return datetime.fromtimestamp(min(seconds, _LATEST), UTC)


def to_datetime_or_none(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a datetime, or None."""
    return None if seconds is None else to_datetime(seconds)
