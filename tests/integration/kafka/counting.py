"""Handlers that append the number of each event to the record of its key, and what tests do with them."""

from collections.abc import Callable
from typing import Any

from kingdom.backends.kafka import KafkaBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import (
    Dispatcher,
    Done,
    Envelope,
    Event,
    Outcome,
    Record,
    Transaction,
)
from tests.integration.running import eventually

Open = Callable[[], KafkaBus]


def placed(number: int, key: str = "a") -> Envelope:
    return Envelope(type="OrderPlaced", payload={"number": number}, partition_key=key)


async def append(event: Event[Any], transaction: Transaction) -> None:
    """Append the number of an event to the record of its key."""
    key = event.envelope.partition_key or ""
    known = await transaction.get("counter", key) or Record(kind="counter", id=key, state="open", doc={"numbers": []})
    numbers = [*known.doc["numbers"], event.payload["number"]]
    await transaction.put(Record(**{**fields(known), "doc": {"numbers": numbers}}))


def fields(record: Record) -> dict[str, Any]:
    return {"kind": record.kind, "id": record.id, "state": record.state, "version": record.version}


def counting(outcome: Callable[[Event[Any]], Outcome | None] = lambda _: None) -> Dispatcher:
    """Return handlers that settle an event with this outcome, and record its number if the outcome is None or Done."""
    dispatcher = Dispatcher()

    async def handle(event: Event[Any], transaction: Transaction) -> Outcome | None:
        result = outcome(event)
        if result is None or isinstance(result, Done):
            await append(event, transaction)
        return result

    for event_type in ("OrderPlaced", "Paid"):
        dispatcher.reaction(event_type)(handle)
    return dispatcher


async def numbers(bus: PostgresBus, key: str = "a") -> list[int]:
    async with bus.transaction() as transaction:
        found = await transaction.get("counter", key)
    return list(found.doc["numbers"]) if found else []


async def until_handled(bus: PostgresBus, expected: list[int], key: str = "a") -> None:
    async def handled() -> bool:
        return len(await numbers(bus, key)) >= len(expected)

    await eventually(handled)
    found = await numbers(bus, key)
    assert found == expected


async def claim_one(bus: KafkaBus, limit: int = 10) -> Any:
    found: list[Any] = []

    async def claimed() -> bool:
        found.extend(await bus.claim("orders", limit, "worker"))
        return bool(found)

    await eventually(claimed)
    return found[0]


async def claim_all(bus: KafkaBus, count: int) -> list[Any]:
    """Return this many deliveries of one or more claims."""
    found: list[Any] = []

    async def claimed() -> bool:
        found.extend(await bus.claim("orders", 10, "worker"))
        return len(found) >= count

    await eventually(claimed)
    return found


async def append_and_settle(bus: KafkaBus, delivery: Any) -> None:
    async with bus.transaction() as transaction:
        await append(Event(delivery.envelope.payload, delivery.envelope, 1, 1), transaction)
        await transaction.settle(delivery, Done())
