"""Reading an event from its file."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kingdom.backends.files.journal.entry import PENDING, EventRow
from kingdom.backends.files.tree.file_formats import _read_any_body, decode_body, encode_body, encode_event_file
from kingdom.bus.envelope import Envelope
from kingdom.errors import MalformedEvent
from tests.unit.bus.test_envelope import envelopes


@dataclass
class StoredEvent:
    """An event in its file."""

    row: EventRow
    content: bytes

    def edited(self, **changes: Any) -> bytes:
        """Return the content of the file after an edit: the changed fields come first."""
        return json.dumps(
            {**changes, **{k: v for k, v in json.loads(self.content).items() if k not in changes}}
        ).encode()


def stored_event(envelope: Envelope, *, ordered: bool = False) -> StoredEvent:
    key = envelope.partition_key if ordered else None
    row = EventRow("s", 7, str(envelope.event_id), key, PENDING, 1.0, 1.0, 10)
    return StoredEvent(row, encode_event_file(row, encode_body(envelope, "s")))


@given(envelopes)
def test_an_event_is_read_from_its_file_as_it_was_written(envelope: Envelope) -> None:
    event = stored_event(envelope)
    found, body = decode_body(event.row, event.content)
    assert found == replace(envelope, stream="s")
    assert Envelope.from_wire(json.loads(bytes(body))) == found


@given(envelopes, st.booleans())
def test_the_fast_and_the_full_decoder_read_the_same(envelope: Envelope, ordered: bool) -> None:  # noqa: FBT001
    event = stored_event(envelope, ordered=ordered)
    quick, careful = decode_body(event.row, event.content), _read_any_body(event.row, event.content)
    assert quick[0] == careful[0]
    assert json.loads(bytes(quick[1])) == json.loads(bytes(careful[1]))


def test_an_edited_payload_takes_effect_and_an_edited_stream_or_key_is_ignored() -> None:
    event = stored_event(Envelope(type="Ping", payload={"n": 1}, partition_key="a"), ordered=True)
    content = event.edited(payload={"n": 2}, color="red", stream="elsewhere", partitionKey="b")
    found, _ = decode_body(event.row, content)
    assert (found.payload, found.attributes) == ({"n": 2}, {"color": "red"})
    assert (found.stream, found.partition_key) == ("s", "a")


@pytest.mark.parametrize("color", [{}, {"color": "red"}])
def test_a_file_that_names_another_event_is_malformed(color: dict[str, str]) -> None:
    event = stored_event(Envelope(type="Ping"))
    other = str(Envelope(type="Ping").event_id)
    with pytest.raises(MalformedEvent, match="restore the eventId"):
        decode_body(event.row, event.edited(eventId=other, **color))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"eventId": 5}', b"\xff"])
def test_a_file_that_is_no_event_is_malformed(content: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_body(stored_event(Envelope(type="Ping")).row, content)


def test_a_header_that_was_emptied_is_malformed() -> None:
    event = stored_event(Envelope(type="Ping"))
    with pytest.raises(MalformedEvent, match="needs a type"):
        decode_body(event.row, event.edited(type=""))
