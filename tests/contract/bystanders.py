"""Unrelated events that must not change. A statement without a condition on stream, key or lease would change them."""

from collections.abc import Set as AbstractSet
from datetime import timedelta
from uuid import UUID

from kingdom.bus import Bus, Dead, Envelope, Retry
from kingdom.clock import utc_now
from tests.contract.picture import Picture

_LONG = timedelta(hours=1)
# Separate streams, with the same keys as the events under test.
STREAMS = ("bystanders.line", "bystanders.blocked", "bystanders.free")


async def put_bystanders(bus: Bus) -> frozenset[UUID]:
    """Publish unrelated events to every stream: in flight, retrying, dead, delayed, and waiting for another event."""
    line, blocked, free = STREAMS
    elsewhere = [_of(name, "k") for name in (line, line, blocked, blocked)] + [_of(free), _of(free)]
    beside = [_of(name, "bystander") for name in ("line", "line", "skipping", "skipping")] + [_of("free")]
    delayed = _of(free)
    await bus.publish(*elsewhere, *beside)
    # One event of each stream is in flight. In an ordered stream it is the head of a key.
    claims = {name: await bus.claim(name, 1, "bystander") for name in (*STREAMS, "line", "skipping", "free")}
    await bus.publish(delayed, at=utc_now() + _LONG)
    async with bus.transaction() as transaction:
        await transaction.settle(claims[line][0], Retry(_LONG, "busy", "not now"))
        await transaction.settle(claims[blocked][0], Dead("broken", "broken"))
    return frozenset(event.event_id for event in (*elsewhere, *beside, delayed))


def part_with(picture: Picture, events: AbstractSet[UUID]) -> Picture:
    """Return the part of a picture that shows these events."""
    rows = [row for row in picture.rows if row.event_id in events]
    lines = {row.line for row in rows}
    return Picture(
        rows=rows,
        ended={event: streams for event, streams in picture.ended.items() if event in events},
        keys={line: blocker for line, blocker in picture.keys.items() if line in lines},
        leases=picture.leases & {row.token for row in rows if row.status == "PROCESSING"},
    )


def part_without(picture: Picture, events: AbstractSet[UUID]) -> Picture:
    """Return the part of a picture that shows all other events."""
    part = part_with(picture, events)
    return Picture(
        rows=[row for row in picture.rows if row.event_id not in events],
        ended={event: streams for event, streams in picture.ended.items() if event not in events},
        keys={line: blocker for line, blocker in picture.keys.items() if line not in part.keys},
        leases=picture.leases - part.leases,
    )


def _of(stream: str, key: str | None = None) -> Envelope:
    return Envelope(type="Bystander", stream=stream, partition_key=key)
