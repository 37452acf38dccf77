"""How events and records look in their files: JSON for people, and what the store must know under a key of its own."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from kingdom.backends.files.journal.entry import PROCESSING, Card, Row
from kingdom.bus.envelope import STORE_KEY, Envelope
from kingdom.bus.record import Record
from kingdom.errors import MalformedEvent

_encode = msgspec.json.Encoder().encode
_OTHER_EVENT = "its file names another event than {}: put the eventId back"
T = TypeVar("T")


def careful(decoder: msgspec.json.Decoder[T]) -> Callable[[bytes], T]:
    """Return a decoder that calls everything damaged that it cannot read, also what only nests too deep."""

    def decode(content: bytes) -> T:
        try:
            return decoder.decode(content)
        except (RecursionError, UnicodeError) as error:
            raise msgspec.DecodeError(str(error)) from error

    return decode


read_document = careful(msgspec.json.Decoder(dict[str, Any]))
_LATEST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
# What is put around a document where it is kept; with fewer brackets than that none is too deep.
_WRAPPING = 20
_BRACKETS = 200


class _Error(msgspec.Struct):
    code: str | None
    message: str | None


class Standing(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """Where an event stands, as its file tells it; `attempts` counts those that have ended."""

    position: int
    created_at: datetime
    max_attempts: int
    attempts: int = 0
    ordered: bool = False
    due_at: datetime | None = None
    due_set_at: datetime | None = None
    not_before: datetime | None = None
    crashes: int = 0
    # Of the last claim that has ended.
    token: int = 0
    last_attempt_at: datetime | None = None
    died_at: datetime | None = None
    blocks_its_key: bool = False
    cancel_requested: bool = False
    error: _Error | None = None
    history: list[dict[str, Any]] | None = None
    event_id_given: bool = False


class _EventFile(
    msgspec.Struct, rename={"event_id": "eventId", "partition_key": "partitionKey", "standing": STORE_KEY}
):
    event_id: str
    standing: Standing
    partition_key: str | None = None


class _PlainEvent(
    msgspec.Struct,
    rename={
        **dict(zip(Envelope.__struct_fields__, Envelope.__struct_encode_fields__, strict=True)),
        "standing": STORE_KEY,
    },
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """An event without attributes, as most are: it is read and written in one step."""

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
    standing: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RecordStanding(msgspec.Struct, rename="camel", omit_defaults=True):
    version: int
    state: str
    created_at: datetime
    updated_at: datetime
    id: str | None = None
    owner: str | None = None
    due_at: datetime | None = None
    ended_at: datetime | None = None


class _RecordFile(msgspec.Struct, rename={"standing": STORE_KEY}):
    standing: _RecordStanding


class EndedEvent(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """One line of the file of events that have ended; `n` is the place of its entry in the journal."""

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
    error: _Error | None = None
    history: list[dict[str, Any]] | None = None
    event_id_given: bool = False


read_ended = msgspec.json.Decoder(EndedEvent).decode
_read_event = careful(msgspec.json.Decoder(_EventFile))
_read_plain = careful(msgspec.json.Decoder(_PlainEvent))
_read_record = careful(msgspec.json.Decoder(_RecordFile))


def body_of(envelope: Envelope, stream: str) -> msgspec.Raw:
    """Return an envelope as one stream carries it."""
    if envelope.attributes:
        return msgspec.Raw(_encode({**envelope.to_wire(), "stream": stream}))
    plain = _PlainEvent(
        schema_version=envelope.schema_version,
        event_id=envelope.event_id,  # type: ignore[arg-type] # it is written as text
        type=envelope.type,
        occurred_at=envelope.occurred_at,
        trace_id=envelope.trace_id,
        owner_id=envelope.owner_id,
        aggregate_type=envelope.aggregate_type,
        aggregate_id=envelope.aggregate_id,
        payload=envelope.payload,  # type: ignore[arg-type] # as above
        stream=stream,
        partition_key=envelope.partition_key,
    )
    return msgspec.Raw(_encode(plain))


def ended_line(place: int, row: Row, status: str, body: msgspec.Raw) -> msgspec.Raw:
    """Return the line of an event that has ended."""
    line = EndedEvent(
        n=place,
        position=row.position,
        status=status,
        token=row.token,
        attempts=row.attempt,
        max_attempts=row.max_attempts,
        crashes=row.crash_count,
        ordered=row.key is not None,
        created_at=moment(row.created_at),
        ended_at=moment(row.processed_at or 0),
        last_attempt_at=maybe(row.last_attempt_at),
        error=_Error(row.error_code, row.error_message) if row.error_code else None,
        history=row.history,
        event_id_given=row.event_id_given,
        event=body,  # type: ignore[arg-type]
    )
    return msgspec.Raw(_encode(line))


def event_file(row: Row, body: bytes) -> bytes:
    """Return what the file of an event holds."""
    text = b'%b,"%b":%b}' % (bytes(body)[:-1], STORE_KEY.encode(), _encode(standing_of(row)))
    return msgspec.json.format(text, indent=2) + b"\n"


def standing_of(row: Row) -> Standing:
    """Return where an event stands, as its file tells it."""
    return Standing(
        position=row.position,
        created_at=moment(row.created_at),
        max_attempts=row.max_attempts,
        attempts=row.attempt - (row.status == PROCESSING),
        ordered=row.key is not None,
        due_at=maybe(row.due),
        due_set_at=maybe(row.due_set_at),
        not_before=maybe(row.not_before),
        crashes=row.crash_count,
        token=row.token,
        last_attempt_at=maybe(row.last_attempt_at),
        died_at=maybe(row.processed_at),
        blocks_its_key=row.blocks,
        cancel_requested=row.cancel_requested,
        error=_Error(row.error_code, row.error_message) if row.error_code else None,
        history=row.history,
        event_id_given=row.event_id_given,
    )


def read_row(stream: str, status: str, content: bytes) -> Row:
    """Return the standing of an event from its file; raises MsgspecError where the file is damaged."""
    file = _read_event(content)
    known = file.standing
    return Row(
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


def read_body(row: Row, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    """Return the envelope of an event from its file, which a person may have edited."""
    try:
        return _read_plain_body(row, content)
    except msgspec.MsgspecError:
        # It has attributes, or is not quite as we would write it, or worse.
        return _read_any_body(row, content)


def _read_plain_body(row: Row, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    plain = _read_plain(content)
    if plain.event_id != row.event_id:
        raise MalformedEvent(_OTHER_EVENT.format(row.event_id))
    # These decide where it stands, and only the store moves it.
    plain.stream = row.stream
    if row.key is not None:
        plain.partition_key = row.key
    plain.standing = msgspec.UNSET
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


def _read_any_body(row: Row, content: bytes) -> tuple[Envelope, msgspec.Raw]:
    try:
        wire = read_document(content)
    except msgspec.MsgspecError as error:
        raise MalformedEvent(f"its file is no JSON object: {error}") from error
    wire.pop(STORE_KEY, None)
    if str(wire.get("eventId")) != row.event_id:
        raise MalformedEvent(_OTHER_EVENT.format(row.event_id))
    wire["stream"] = row.stream
    if row.key is not None:
        wire["partitionKey"] = row.key
    return Envelope.from_wire(wire), msgspec.Raw(_encode(wire))


def record_file(card: Card, doc: bytes, *, name_tells_id: bool) -> bytes:
    """Return what the file of a record holds: its document at top level, and what the store must know."""
    standing = _RecordStanding(
        id=None if name_tells_id else card.id,
        version=card.version,
        state=card.state,
        owner=card.owner,
        due_at=maybe(card.due_at),
        created_at=moment(card.created_at),
        updated_at=moment(card.updated_at),
        ended_at=maybe(card.ended_at),
    )
    start = bytes(doc)[:-1]
    comma = b"," if start != b"{" else b""
    text = b'%b%b"%b":%b}' % (start, comma, STORE_KEY.encode(), _encode(standing))
    return msgspec.json.format(text, indent=2) + b"\n"


def read_card(kind: str, name: str | None, content: bytes) -> Card:
    """Return everything about a record but its document; raises MsgspecError where the file is damaged."""
    known = _read_record(content).standing
    return Card(
        kind=kind,
        id=known.id or name or "",
        version=known.version,
        state=known.state,
        owner=known.owner,
        due_at=known.due_at.timestamp() if known.due_at else None,
        created_at=known.created_at.timestamp(),
        updated_at=known.updated_at.timestamp(),
        ended_at=known.ended_at.timestamp() if known.ended_at else None,
    )


def with_card(card: Card, content: bytes) -> Record:
    """Return a record whose file tells the document, and whose card tells the rest."""
    doc = read_document(content)
    doc.pop(STORE_KEY, None)
    return Record(
        kind=card.kind,
        id=card.id,
        state=card.state,
        version=card.version,
        owner=card.owner,
        due_at=maybe(card.due_at),
        doc=doc,
    )


def document(doc: Mapping[str, Any]) -> msgspec.Raw:
    """Return a record's document as JSON."""
    return msgspec.Raw(_encode(doc))


def refuse_too_deep(text: bytes) -> None:
    """Refuse JSON that nests so deep that it could be written, and never be read again."""
    if text.count(b"[") + text.count(b"{") > _BRACKETS:
        try:
            msgspec.json.decode(b"[" * _WRAPPING + text + b"]" * _WRAPPING)
        except (RecursionError, msgspec.DecodeError) as error:
            raise MalformedEvent("it nests too deep to be kept: flatten it") from error


@lru_cache(maxsize=256)
def moment(seconds: float) -> datetime:
    """Return seconds since 1970 as a time, at the latest the last one that there is."""
    return datetime.fromtimestamp(min(seconds, _LATEST), UTC)


def maybe(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a time, if there are any."""
    return None if seconds is None else moment(seconds)
