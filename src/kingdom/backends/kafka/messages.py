"""Turn messages of topics into events."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from confluent_kafka import Message

from kingdom.backends.kafka.brokers import header_pairs, read_headers
from kingdom.bus.envelope import Envelope
from kingdom.bus.stream import Stream
from kingdom.bus.transport import ForeignMessage
from kingdom.clock import utc_now
from kingdom.errors import MalformedEvent

# The type of the dead letter that a malformed message becomes.
MALFORMED = "MalformedMessage"
_MILLISECONDS_MAX = datetime.max.replace(tzinfo=UTC).timestamp() * 1000


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event of a topic. If `problem` is not empty, its message could not be read."""

    envelope: Envelope
    published_at: datetime
    not_before: datetime | None = None
    problem: str = ""


def read_event(stream: Stream, message: Message) -> ReceivedEvent:
    """Return the event of a message. A malformed message becomes an event that can only be a dead letter."""
    at = _published_at(message)
    try:
        if stream.source:
            foreign = _foreign(message, at)
            # The fields of a struct are only checked here, and not by the function of the application.
            envelope = msgspec.structs.replace(
                stream.source.read(foreign), event_id=_derived_id(foreign), stream=stream.name
            )
            return ReceivedEvent(envelope, at)
        wire = msgspec.json.decode(_bytes(message.value()) or b"")
        return ReceivedEvent(Envelope.from_wire({**wire, "stream": stream.name}), at, _not_before(message))
    except Exception as error:  # noqa: BLE001 - the function belongs to the application, and must not stop the stream
        letter = _letter(stream, _foreign(message, at))
        return ReceivedEvent(letter, at, problem=f"{type(error).__name__}: {error}")


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


def _not_before(message: Message) -> datetime | None:
    # Converting all headers takes time, and almost no event is delayed.
    if all(name != "notBefore" for name, _ in header_pairs(message)):
        return None
    text = read_headers(message)["notBefore"]
    moment = datetime.fromisoformat(text.decode())
    if moment.tzinfo is None:
        raise MalformedEvent("the header notBefore has no time zone")
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
