"""The journal of a store of files: numbers that never come twice, and damage that is not taken for a torn end."""

from pathlib import Path

import pytest

from kingdom.backends.files.draft import Draft
from kingdom.bus import Done
from kingdom.bus.port import Copy
from kingdom.errors import Permanent, Unavailable
from tests.integration.crash_scenes import TOPOLOGY, BlockingBus, event


@pytest.fixture
def bus(realm: Path) -> BlockingBus:
    bus = BlockingBus(realm)
    bus.store.open()
    return bus


async def test_a_position_beyond_its_entry_is_refused_and_leaves_nothing(bus: BlockingBus) -> None:
    def publish(draft: Draft, *, gap: int) -> None:
        draft.place += gap
        draft.publish([Copy(TOPOLOGY.stream("free"), event("Ping"), None)])
        draft.place -= gap
        bus.store.commit(draft)

    with pytest.raises(Permanent, match="beyond its journal entry"), bus.store.exclusive() as draft:
        publish(draft, gap=2000)
    with bus.store.exclusive() as draft:
        assert not draft.books.stream("free").rows
        publish(draft, gap=0)
    assert len(await bus.claim("free", 5, "w")) == 1
    bus.store.close()


def segment_of(bus: BlockingBus) -> Path:
    (segment,) = Path(bus.store.layout.journal).glob("0*.jsonl")
    return segment


def reopened_after_a_restart(bus: BlockingBus) -> BlockingBus:
    """Close the store and open it again in another boot of the machine."""
    bus.store.close()
    again = BlockingBus(Path(bus.store.layout.root))
    again.store.boot = "another"
    again.store.open()
    return again


@pytest.mark.parametrize("number", range(4))
async def test_one_flipped_bit_before_a_synced_entry_is_refused_and_nothing_is_cut(
    bus: BlockingBus, number: int
) -> None:
    for each in range(5):
        await bus.publish(event("Ping", number=each))
    segment = segment_of(bus)
    lines = segment.read_bytes().splitlines(keepends=True)
    at = sum(map(len, lines[:number]))
    damaged = bytearray(b"".join(lines))
    damaged[at + 40] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(Unavailable, match=f"backup.* truncate -s {at} {segment}"):
        reopened_after_a_restart(bus)
    assert segment.read_bytes() == damaged
    # What the error says to do.
    segment.write_bytes(b"".join(lines))
    again = reopened_after_a_restart(bus)
    assert len(await again.claim("free", 9, "w")) == 5
    again.store.close()


async def test_a_last_entry_that_is_torn_is_cut_off(bus: BlockingBus) -> None:
    await bus.publish(event("Ping", number=1))
    size = segment_of(bus).stat().st_size
    await bus.publish(event("Ping", number=2))
    (segment_of(bus)).write_bytes(segment_of(bus).read_bytes()[:-10])
    again = reopened_after_a_restart(bus)
    assert segment_of(again).stat().st_size == size
    again.store.close()


async def test_an_unsynced_claim_that_a_loss_of_power_took_is_cut_off_with_the_unsynced_entry_behind_it(
    bus: BlockingBus,
) -> None:
    await bus.publish(event("Ping", number=1))
    size = segment_of(bus).stat().st_size
    (delivery,) = await bus.claim("free", 1, "w")
    claimed = segment_of(bus).stat().st_size
    async with bus.transaction([delivery]) as transaction:
        await transaction.settle(delivery, Done())
    content = bytearray(segment_of(bus).read_bytes())
    # The page with the claim was never written, the one with the settlement was, and then the power went.
    content[size:claimed] = bytes(claimed - size)
    segment_of(bus).write_bytes(content)
    again = reopened_after_a_restart(bus)
    assert segment_of(again).stat().st_size == size
    again.store.close()
