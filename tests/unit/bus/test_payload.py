from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import Dispatcher, Envelope, EventType
from kingdom.bus.outcome import Defer
from kingdom.bus.worker.dispatcher import HandlerRoute
from kingdom.errors import MalformedEvent, Misconfigured
from tests.unit.bus.deliveries import delivery


class Order(msgspec.Struct):
    item: str
    count: int
    currency: str


def add_count(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "count": 1}


def rename_and_add_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return {"item": payload["thing"], "count": payload["count"], "currency": "EUR"}


ORDER = EventType(name="Order", payload=Order, version=3, upcasts={1: add_count, 2: rename_and_add_currency})


@pytest.mark.parametrize(
    ("version", "payload", "order"),
    [
        (1, {"thing": "tea"}, Order("tea", 1, "EUR")),
        (2, {"thing": "tea", "count": 4}, Order("tea", 4, "EUR")),
        (3, {"item": "tea", "count": 4, "currency": "KRW"}, Order("tea", 4, "KRW")),
    ],
)
def test_every_older_version_is_converted_step_by_step(version: int, payload: dict[str, Any], order: Order) -> None:
    envelope = Envelope(type="Order", schema_version=version, payload=payload)
    assert ORDER.decode(envelope) == order
    assert envelope.payload == payload


@given(st.builds(Order, item=st.text(), count=st.integers(-(2**63), 2**63 - 1), currency=st.text()))
def test_a_payload_is_decoded_from_its_envelope_unchanged(order: Order) -> None:
    envelope = ORDER.envelope(order, owner_id="me")
    assert (envelope.type, envelope.schema_version, envelope.owner_id) == ("Order", 3, "me")
    assert ORDER.decode(envelope) == order


@pytest.mark.parametrize(
    ("version", "payload"),
    [
        (3, {}),
        (3, {"item": 7, "count": 1, "currency": "EUR"}),
        (3, {"item": "tea", "count": "many", "currency": "EUR"}),
        (2, {"no": "thing"}),
        (1, {"item": "tea"}),
        (0, {"item": "tea"}),
        (-5, {"item": "tea"}),
    ],
)
def test_a_payload_that_does_not_fit_is_malformed(version: int, payload: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent, match=f"schemaVersion {version}"):
        ORDER.decode(Envelope(type="Order", schema_version=version, payload=payload))


def test_a_missing_upcast_is_refused_at_the_declaration() -> None:
    with pytest.raises(Misconfigured, match=r"version 3 lacks upcasts from the versions \[1\]"):
        EventType(name="Order", payload=Order, version=3, upcasts={2: rename_and_add_currency})


async def handler(*_: object) -> None:
    """Do nothing."""


def test_the_dispatcher_defers_a_version_that_is_newer_than_its_code() -> None:
    dispatcher = Dispatcher()
    dispatcher.reaction(ORDER)(handler)
    newer = dispatcher.route(delivery(envelope=Envelope(type="Order", schema_version=4)))
    assert isinstance(newer, Defer)
    assert newer.reason == "Order has schemaVersion 4, newer than this code"
    assert isinstance(dispatcher.route(delivery(envelope=Envelope(type="Order", schema_version=3))), HandlerRoute)


def test_a_handler_of_raw_payloads_takes_every_version() -> None:
    dispatcher = Dispatcher()
    dispatcher.reaction("Order")(handler)
    route = dispatcher.route(delivery(envelope=Envelope(type="Order", schema_version=9, payload={"a": 1})))
    assert isinstance(route, HandlerRoute)
    assert route.receive(delivery(envelope=Envelope(type="Order", payload={"a": 1}))).payload == {"a": 1}


def test_the_dispatcher_defers_events_without_a_handler() -> None:
    dispatcher = Dispatcher()
    dispatcher.reaction("Other")(handler)
    dispatcher.reaction("Order", stream="elsewhere")(handler)
    route = dispatcher.route(delivery(envelope=Envelope(type="Order")))
    assert isinstance(route, Defer)
    assert route.reason == "no handler for Order in this process"


def test_a_second_handler_for_the_same_type_and_stream_is_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.reaction(ORDER)(handler)
    dispatcher.reaction("Order", stream="a")(handler)
    with pytest.raises(Misconfigured, match="Order already has a handler"):
        dispatcher.reaction("Order")(handler)
    with pytest.raises(Misconfigured, match="in a"):
        dispatcher.reaction("Order", stream="a")(handler)
