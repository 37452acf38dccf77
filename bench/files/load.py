"""The load: events of about 1 KB, one stream, and calls of the port."""

from collections.abc import Sequence

from kingdom.bus import Bus, Delivery, Done, Envelope, Stream, Topology

STREAM = "bench"
GROUP = 100
TOPOLOGY = Topology([Stream(name=STREAM, subscribes=frozenset({"Measured"}))])
_PAYLOAD = {"text": "x" * 600, "items": [{"number": number, "name": f"item {number}"} for number in range(10)]}


def some_events(count: int) -> list[Envelope]:
    """Return new events."""
    return [Envelope(type="Measured", payload=_PAYLOAD) for _ in range(count)]


async def settle(bus: Bus, deliveries: Sequence[Delivery]) -> None:
    """Settle deliveries as done in one transaction."""
    async with bus.transaction(deliveries) as transaction:
        for delivery in transaction.held:
            await transaction.settle(delivery, Done())


async def drain(bus: Bus) -> int:
    """Claim and settle until nothing is left, and return the number of events."""
    count = 0
    while deliveries := await bus.claim(STREAM, GROUP, "bench"):
        await settle(bus, deliveries)
        count += len(deliveries)
    return count
