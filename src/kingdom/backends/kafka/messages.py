"""Turn messages of topics into events."""

import base64
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from confluent_kafka import Message

from kingdom.backends.kafka.brokers import read_headers
from kingdom.backends.postgres.rows import refuse_long_key
from kingdom.bus.envelope import Envelope
from kingdom.bus.record import refuse_unstorable_event
from kingdom.bus.stream import Stream
from kingdom.bus.transport import ForeignMessage, ForeignTopic
from kingdom.clock import utc_now
from kingdom.errors import MalformedEvent

# The type of the dead letter that a malformed message becomes.
MALFORMED = "MalformedMessage"
# A field of a delayed event, beside those of its envelope. Reading it takes less time than reading the headers.
NOT_BEFORE = "kingdomNotBefore"
_MILLISECONDS_MAX = datetime.max.replace(tzinfo=UTC).timestamp() * 1000
_SCHEMA_VERSION_END = 2**31
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(Envelope).decode


class ReceivedEvent(msgspec.Struct, frozen=True, eq=False):
    """An event of a topic. If `problem` is not empty, its message could not be read."""

    envelope: Envelope
    published_at: datetime
    not_before: datetime | None = None
    problem: str = ""


def read_event(stream: Stream, message: Message) -> ReceivedEvent:
    """Return the event of a message. A malformed message becomes an event that can only be a dead letter."""
    at = _published_at(message)
    try:
        return _read(stream, message, at)
    except Exception as error:  # noqa: BLE001 - the function belongs to the application, and must not stop the stream
        letter = _letter(stream, _foreign(message, at))
        return ReceivedEvent(letter, at, problem=f"{type(error).__name__}: {error}")


def _read(stream: Stream, message: Message, at: datetime) -> ReceivedEvent:
    not_before = None
    if stream.source:
        envelope = _read_foreign(stream, stream.source, _foreign(message, at))
    else:
        wire = _decode(_bytes(message.value()) or b"")
        wire["stream"] = stream.name
        not_before = _moment(wire.pop(NOT_BEFORE)) if NOT_BEFORE in wire else None
        envelope = Envelope.from_wire(wire)
        refuse_unstorable_event(envelope)
    # The outbox must be able to take in every event, else it could neither be retried nor become a dead letter.
    refuse_long_key(stream, envelope)
    if not -_SCHEMA_VERSION_END <= envelope.schema_version < _SCHEMA_VERSION_END:
        raise MalformedEvent(f"the schema version {envelope.schema_version} has more than 32 bits")
    return ReceivedEvent(envelope, at, not_before)


def _read_foreign(stream: Stream, source: ForeignTopic, message: ForeignMessage) -> Envelope:
    read = source.read(message)
    if not isinstance(read, Envelope):
        raise MalformedEvent(f"the function of {source.name} returned {type(read).__name__}, not an Envelope")
    # Before the conversion to JSON, which has null instead of NaN.
    refuse_unstorable_event(read)
    # The types of fields are checked when JSON is decoded, and not when the function creates an envelope.
    return _decode_envelope(_encode(msgspec.structs.replace(read, event_id=_derived_id(message), stream=stream.name)))


def _published_at(message: Message) -> datetime:
    _, milliseconds = message.timestamp()
    # A foreign producer may count microseconds. No datetime is so late.
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if 0 < milliseconds < _MILLISECONDS_MAX else utc_now()


def _foreign(message: Message, at: datetime) -> ForeignMessage:
    return ForeignMessage(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=read_headers(message),
        at=at,
    )


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _derived_id(message: ForeignMessage) -> UUID:
    return uuid5(NAMESPACE_URL, f"kafka:{message.topic}/{message.partition}/{message.offset}")


def add_not_before(value: str, not_before: datetime) -> str:
    """Return the JSON of an event with the time at which it is due."""
    return f'{value.removesuffix("}")},"{NOT_BEFORE}":"{not_before.isoformat()}"}}'


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise MalformedEvent(f"{NOT_BEFORE} has no time zone")
    return moment


def _letter(stream: Stream, message: ForeignMessage) -> Envelope:
    payload = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": _text(message.key),
        "value": _text(message.value),
    }
    return Envelope(
        type=MALFORMED, payload=payload, event_id=_derived_id(message), occurred_at=message.at, stream=stream.name
    )


def _text(content: bytes | None) -> str | None:
    """Return content as text, or in base64 if it is no text that can be stored."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\x00"
    return f"base64:{base64.b64encode(content).decode()}" if "\x00" in text else text
