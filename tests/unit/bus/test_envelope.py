import json
from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Envelope
from kingdom.bus.envelope import STORE_KEY, current_cause
from kingdom.errors import MalformedEvent
from kingdom.ids import new_event_id

WIRE_NAMES = {
    *("schemaVersion", "eventId", "type", "occurredAt", "traceId", "ownerId", "stream", "partitionKey"),
    *("aggregateType", "aggregateId", "payload"),
}

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
envelopes = st.builds(
    Envelope,
    type=texts.filter(bool),
    payload=st.dictionaries(texts, json_values, max_size=4),
    schema_version=st.integers(1, 100),
    event_id=st.uuids(),
    occurred_at=st.datetimes(timezones=st.just(UTC)),
    trace_id=texts,
    owner_id=texts,
    stream=st.none() | texts.filter(bool),
    partition_key=st.none() | texts,
    aggregate_type=texts,
    aggregate_id=texts,
    attributes=st.dictionaries(texts.filter(lambda name: name not in {*WIRE_NAMES, STORE_KEY}), texts, max_size=4),
)


@given(envelopes)
def test_the_wire_form_is_json_and_reads_back_as_the_same_envelope(envelope: Envelope) -> None:
    wire = json.loads(json.dumps(envelope.to_wire()))
    assert Envelope.from_wire(wire) == envelope


@given(envelopes)
def test_attributes_are_flat_next_to_the_headers(envelope: Envelope) -> None:
    wire = envelope.to_wire()
    assert {name: wire[name] for name in envelope.attributes} == envelope.attributes
    assert wire.keys() - envelope.attributes.keys() <= WIRE_NAMES


@given(st.dictionaries(st.sampled_from(sorted(WIRE_NAMES)) | texts, json_values, max_size=12))
def test_any_json_object_is_an_envelope_or_is_refused(wire: dict[str, Any]) -> None:
    try:
        envelope = Envelope.from_wire(wire)
    except MalformedEvent:
        return
    assert Envelope.from_wire(json.loads(json.dumps(envelope.to_wire()))) == envelope


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"type": ""},
        {"type": None},
        {"type": 5},
        {"type": ["a"]},
        {"type": "A", "eventId": "no uuid"},
        {"type": "A", "eventId": 5},
        {"type": "A", "occurredAt": "yesterday"},
        {"type": "A", "occurredAt": 1700000000},
        {"type": "A", "schemaVersion": "three"},
        {"type": "A", "schemaVersion": True},
        {"type": "A", "payload": "text"},
        {"type": "A", "payload": ["list"]},
        {"type": "A", "partitionKey": 5},
        {"type": "A", "stream": {"name": "a"}},
        {"type": "A", "traceId": 5},
    ],
    ids=json.dumps,
)
def test_a_document_that_is_not_an_envelope_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        Envelope.from_wire(wire)


def test_an_unknown_field_becomes_an_attribute_as_json_unless_it_is_a_text_or_null() -> None:
    fields = {"text": "ü", "null": None, "number": 1.5, "true": True, "object": {"a": ["ü", None, False]}}
    attributes = Envelope.from_wire({"type": "A", **fields}).attributes
    assert attributes == {"text": "ü", "number": "1.5", "true": "true", "object": '{"a":["ü",null,false]}'}


@pytest.mark.parametrize("wire", [None, 5, "text", ["list"]])
def test_a_value_that_is_not_an_object_is_refused(wire: Any) -> None:
    with pytest.raises(MalformedEvent):
        Envelope.from_wire(wire)


@pytest.mark.parametrize(
    "field", ["type", "trace_id", "owner_id", "stream", "partition_key", "aggregate_type", "aggregate_id"]
)
def test_a_nul_character_in_a_header_is_refused(field: str) -> None:
    with pytest.raises(MalformedEvent, match="NUL"):
        msgspec.structs.replace(Envelope(type="A"), **{field: "a\x00b"})


@pytest.mark.parametrize("attributes", [{"a": "\x00"}, {"\x00": "a"}])
def test_a_nul_character_in_an_attribute_is_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(MalformedEvent, match="NUL"):
        Envelope(type="A", attributes=attributes)


@pytest.mark.parametrize("name", sorted(WIRE_NAMES))
def test_an_attribute_may_not_hide_a_header(name: str) -> None:
    with pytest.raises(MalformedEvent, match=name):
        Envelope(type="A", attributes={name: "x"})


def test_an_envelope_needs_only_a_type() -> None:
    envelope = Envelope.from_wire({"type": "A"})
    assert (envelope.type, envelope.schema_version, envelope.payload, envelope.stream) == ("A", 1, {}, None)
    assert envelope.event_id.version == 7
    assert envelope.occurred_at.tzinfo is not None


def test_follow_ups_share_the_trace_of_their_cause() -> None:
    cause = Envelope(type="A")
    token = current_cause.set(cause)
    try:
        assert Envelope(type="B").trace_id == cause.trace_id
    finally:
        current_cause.reset(token)
    assert Envelope(type="B").trace_id != cause.trace_id


def test_an_envelope_cannot_be_changed() -> None:
    envelope = Envelope(type="A")
    with pytest.raises(AttributeError):
        envelope.type = "B"  # type: ignore[misc]


def test_log_lines_have_the_six_documented_fields() -> None:
    event_id = new_event_id()
    envelope = Envelope(type="A", event_id=event_id, trace_id="t", stream="s", aggregate_type="order", aggregate_id="7")
    assert envelope.log_fields() == {
        "traceId": "t",
        "eventId": str(event_id),
        "stream": "s",
        "eventType": "A",
        "aggregateType": "order",
        "aggregateId": "7",
    }
