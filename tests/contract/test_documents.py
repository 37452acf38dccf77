"""A store returns documents unchanged. A document that some store cannot return is refused by all."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kingdom.bus import Envelope, LogEntry, Record, Transaction
from kingdom.errors import MalformedEvent
from tests.contract.backends import BackendUnderTest
from tests.contract.scene import KINDS, TOPOLOGY, Scene

texts = st.text(st.characters(exclude_categories=[]), max_size=8)
numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([1e15, 1e16, -1e16, 1e22, 5e-324, -0.0, 2.0**53, 2**63, -(2**64) - 1, 10**30, math.inf])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(texts, values, max_size=4)


@pytest.fixture
def store(backend: BackendUnderTest) -> Iterator[tuple[asyncio.Runner, Scene]]:
    with asyncio.Runner() as runner:
        opening = AsyncExitStack()
        bus = runner.run(opening.enter_async_context(backend.open(TOPOLOGY, KINDS)))
        yield runner, Scene(backend, bus, backend.operations(bus))
        runner.run(opening.aclose())


async def keep(scene: Scene, document: Mapping[str, Any]) -> list[Any]:
    """Store a document in every possible way, and return what the store returns."""
    record_id = str(uuid4())
    event, entry = Envelope(type="Ping", payload=document), LogEntry(type="noted", actor="tester", data=document)
    async with scene.bus.transaction() as transaction:
        await transaction.publish(event)
        await transaction.put(Record(kind="tally", id=record_id, state="counting", doc=document))
        await transaction.append(entry)
    (delivery,) = await scene.drain("free")
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("tally", record_id)
    (logged,) = [each.entry for each in await scene.read_log() if each.entry.trace_id == entry.trace_id]
    assert record is not None
    return [delivery.envelope.payload, record.doc, logged.data]


def shape(value: Any) -> Any:
    """Return a value with the types of all its parts."""
    match value:
        case dict():
            return {name: shape(part) for name, part in value.items()}
        case list():
            return [shape(part) for part in value]
    return type(value), value


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=documents)
def test_every_accepted_value_is_returned_equal_and_of_the_same_types(
    store: tuple[asyncio.Runner, Scene], document: dict[str, Any]
) -> None:
    runner, scene = store
    try:
        kept = runner.run(keep(scene, document))
    except MalformedEvent:
        return
    assert [shape(each) for each in kept] == [shape(document)] * 3


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "not every store returns"),
        (math.inf, "not every store returns"),
        (1e22, "not every store returns"),
        (-1e16, "not every store returns"),
        (10**4000, "4000 digits"),
        ("a\x00b", "NUL"),
        ("a\ud800b", "surrogate"),
        ({"a\x00b": 1}, "NUL"),
        ({1: 2}, "must be text"),
        ({1, 2}, "set is not a JSON type"),
        (b"bytes", "bytes is not a JSON type"),
    ],
    ids=lambda value: ascii(value)[:20],
)
async def test_a_value_that_a_store_cannot_return_is_refused_with_its_place(scene: Scene, value: Any, why: str) -> None:
    document = {"fine": 1, "items": [{"price": 1.5}, {"price": value}]}
    ways: dict[str, Callable[[Transaction], Awaitable[object]]] = {
        "payload": lambda t: t.publish(Envelope(type="Ping", payload=document)),
        "doc": lambda t: t.put(Record(kind="tally", id="a", state="counting", doc=document)),
        "data": lambda t: t.append(LogEntry(type="noted", actor="tester", data=document)),
    }
    async with scene.bus.transaction() as transaction:
        for name, write in ways.items():
            with pytest.raises(MalformedEvent, match=rf"{name}\.items\[1\]\.price.*{why}"):
                await write(transaction)
    assert scene.picture.rows == []


async def test_a_document_that_nests_too_deep_is_refused(scene: Scene) -> None:
    document: dict[str, Any] = {}
    for _ in range(2000):
        document = {"a": document}
    with pytest.raises(MalformedEvent, match="nested too deeply"):
        await scene.bus.publish(Envelope(type="Ping", payload=document))
