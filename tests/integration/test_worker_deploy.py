"""A rolling deploy: events whose handler or version this process does not know yet."""

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dispatcher, Envelope, Event, EventType, Transaction
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.why import why
from tests.integration.running import at_work, event, eventually, open_bus, rows, stream, until_all


class Order(msgspec.Struct):
    item: str
    count: int
    currency: str


def with_count(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "count": 1}


def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return {"item": payload["thing"], "count": payload["count"], "currency": "EUR"}


ORDER = EventType(name="Order", payload=Order, version=3, upcasts={1: with_count, 2: with_currency})


async def deferred(bus: PostgresBus, envelope: Envelope) -> bool:
    found = await event(bus, envelope)
    return bool(found["status"] == "PENDING" and found["last_error_code"] == "deferred")


async def make_due(bus: PostgresBus) -> None:
    await rows(bus, "UPDATE kingdom.outbox_event SET next_retry_at = now()")


async def test_an_event_without_a_handler_is_deferred_and_handled_after_the_deploy(dsn: str) -> None:
    registry, envelope, handled = CollectorRegistry(), Envelope(type="New", payload={"n": 1}), list[int]()
    async with open_bus(dsn, stream("jobs", "New")) as bus:
        await bus.publish(envelope)
        async with at_work(bus, Dispatcher(), metrics=WorkerMetrics(registry)):
            await eventually(lambda: deferred(bus, envelope))
        waiting = await event(bus, envelope)
        (situation,) = await PostgresOperations(bus).situations(envelope.event_id)

        deployed = Dispatcher()

        @deployed.reaction("New")
        async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
            handled.append(received.payload["n"])

        await make_due(bus)
        async with at_work(bus, deployed):
            await until_all(bus, "DONE", 1)
        assert (await event(bus, envelope))["attempt_count"] == 1
    assert waiting["attempt_count"] == 0
    assert "Reason: no handler for New in this process" in why(situation)
    assert handled == [1]
    labels = {"stream": "jobs", "eventType": "New"}
    assert registry.get_sample_value("kingdom_outbox_no_handler_total", labels) == 1
    assert registry.get_sample_value("kingdom_outbox_processed_total", {"stream": "jobs", "result": "defer"}) == 1


async def test_events_of_older_versions_are_handled_and_a_newer_one_waits(dsn: str) -> None:
    dispatcher, handled = Dispatcher(), list[Order]()

    @dispatcher.reaction(ORDER)
    async def handle(received: Event[Order], _transaction: Transaction) -> None:
        handled.append(received.payload)

    old = [
        Envelope(type="Order", schema_version=1, payload={"thing": "a"}),
        Envelope(type="Order", schema_version=2, payload={"thing": "b", "count": 2}),
        ORDER.envelope(Order("c", 3, "KRW")),
    ]
    newer = Envelope(type="Order", schema_version=4, payload={"unheard": "of"})
    async with open_bus(dsn, stream("jobs", "Order")) as bus:
        await bus.publish(*old, newer)
        async with at_work(bus, dispatcher):
            await eventually(lambda: deferred(bus, newer))
        found = [await event(bus, envelope) for envelope in (*old, newer)]
    assert handled == [Order("a", 1, "EUR"), Order("b", 2, "EUR"), Order("c", 3, "KRW")]
    assert [(row["status"], row["attempt_count"]) for row in found] == [("DONE", 1)] * 3 + [("PENDING", 0)]
    assert "schemaVersion 4, newer than this code" in found[3]["last_error_message"]


async def test_a_payload_that_does_not_fit_its_type_is_dead_at_once(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction(ORDER)
    async def handle(_received: Event[Order], _transaction: Transaction) -> None:
        raise AssertionError("this must not be handled")

    envelope = Envelope(type="Order", schema_version=3, payload={"item": 7})
    async with open_bus(dsn, stream("jobs", "Order")) as bus:
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await until_all(bus, "DEAD", 1)
        found = await event(bus, envelope)
    assert (found["last_error_code"], found["attempt_count"]) == ("malformed", 1)


async def test_a_handler_of_one_stream_takes_precedence_over_a_general_one(dsn: str) -> None:
    dispatcher, handled = Dispatcher(), list[str]()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        handled.append(f"any: {received.envelope.stream}")

    @dispatcher.reaction("Job", stream="special")
    async def handle_special(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        handled.append(f"special: {received.envelope.stream}")

    async with open_bus(dsn, stream("plain", "Job"), stream("special", "Job")) as bus:
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 2)
    assert sorted(handled) == ["any: plain", "special: special"]
