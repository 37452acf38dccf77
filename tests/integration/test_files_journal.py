"""The journal of a store of files: numbers that never come twice, and damage that is not taken for a torn end."""

from pathlib import Path

import pytest

from kingdom.backends.files.draft import Draft
from kingdom.bus.port import Copy
from kingdom.errors import Permanent
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
