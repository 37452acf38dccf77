"""Recovery of a store of files: it restores the entries of the journal, and keeps changes of people."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.backends.files import FilesOperations
from kingdom.backends.files.store import Store
from kingdom.bus import LogEntry, Record
from kingdom.bus.log import LogCursor
from kingdom.bus.port import EventCopy
from kingdom.errors import Unavailable
from tests.integration.crash_picture import picture_of
from tests.integration.crash_scenes import TOPOLOGY, BlockingBus, event
from tests.integration.crash_sweep import kill, open_with
from tests.integration.crashing_disk import CountingDisk, FullDisk, KillingDisk

_HOUR = timedelta(hours=1)


@pytest.fixture
def bus(realm: Path) -> BlockingBus:
    bus = BlockingBus(realm)
    bus.store.open()
    return bus


def recovered(bus: BlockingBus, kinds: Any = None) -> Store:
    """Close the store and open it again in another boot of the machine."""
    bus.store.close()
    store = Store(bus.store.layout.root, bus.store.kinds if kinds is None else kinds)
    store.boot = "another"
    store.open()
    return store


def file_of(bus: BlockingBus, stream: str) -> Path:
    (path,) = Path(bus.store.layout.stream(stream)).glob("*/*.json")
    return path


async def test_an_event_that_a_person_has_edited_stays_as_it_is(bus: BlockingBus) -> None:
    await bus.publish(event("Ping", number=1))
    path = file_of(bus, "free")
    path.write_text(path.read_text().replace('"number": 1', '"number": 2'))
    store = recovered(bus)
    assert picture_of(store)["events"]["free"][0][-1]["number"] == 2
    store.close()


async def test_a_record_that_a_person_has_edited_stays_as_it_is(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.put(Record(kind="job", id="a", state="open", doc={"is": 1}))
    (path,) = Path(bus.store.layout.root, "jobs/open").glob("*")
    path.write_text(path.read_text().replace('"is": 1', '"is": 2'))
    store = recovered(bus)
    assert json.loads(picture_of(store)["records"]["job/a"][-1]) == {"is": 2}
    store.close()


async def test_a_half_written_event_is_restored_from_the_journal(bus: BlockingBus) -> None:
    await bus.publish(event("Ping", number=1))
    path = file_of(bus, "free")
    path.write_bytes(path.read_bytes()[:40])
    store = recovered(bus)
    assert picture_of(store)["events"]["free"][0][-1]["number"] == 1
    store.close()


async def test_a_link_in_the_place_of_an_event_stops_no_other(bus: BlockingBus) -> None:
    await bus.publish(event("Ping", number=1))
    path = file_of(bus, "free")
    await bus.publish(event("Ping", number=2))
    path.unlink()
    path.symlink_to("/dev/null")
    (delivery,) = await bus.claim("free", 5, "w")
    assert delivery.envelope.payload["number"] == 2
    bus.store.close()
    bus.store.open()
    with bus.store.exclusive() as plan:
        assert len(plan.events.stream("free").rows) == 2
    bus.store.close()


async def test_a_withdrawn_event_does_not_return(bus: BlockingBus) -> None:
    await bus.publish(event("Ping"))
    path, content = file_of(bus, "free"), file_of(bus, "free").read_bytes()
    path.unlink()
    with bus.store.exclusive() as plan:
        (row,) = plan.events.stream("free").rows.values()
        plan.withdraw(row)
        bus.store.commit(plan)
    # The removal by a person was never synced.
    path.write_bytes(content)
    store = recovered(bus)
    assert "free" not in picture_of(store)["events"]
    store.close()


async def test_records_of_an_unknown_kind_are_recovered(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.put(Record(kind="job", id="a", state="open", doc={"is": 1}))
    (path,) = Path(bus.store.layout.root, "jobs/open").glob("*")
    path.unlink()
    recovered(bus, {}).close()
    assert json.loads(path.read_text())["is"] == 1


async def test_a_cancelled_event_keeps_the_time_that_its_lease_was_renewed_to(bus: BlockingBus) -> None:
    await bus.publish(event("Ping"))
    other = BlockingBus(Path(bus.store.layout.root))
    other.store.open()
    (delivery,) = await bus.claim("free", 1, "w")
    # The other process has read the lease before its renewal.
    picture_of(other.store)
    bus.renew({delivery.token: _HOUR})
    await FilesOperations(other).cancel(delivery.envelope.event_id, "free", actor="test")
    lease = other.store.tree.read_lease(delivery.token)
    assert lease
    assert lease.cancelled == [delivery.position]
    assert lease.expires > other.store.events.leases[delivery.token].expires
    assert bus.renew({delivery.token: _HOUR}).cancelled == {delivery.position}
    bus.store.close()
    other.store.close()


async def test_a_log_with_a_damaged_line_keeps_all_others(bus: BlockingBus) -> None:
    for number in range(3):
        async with bus.transaction() as transaction:
            await transaction.append(LogEntry(type=f"entry {number}", actor="test", data={}))
    bus.store.checkpoint()
    log = Path(bus.store.layout.log)
    first, second, third = log.read_text().splitlines()
    log.write_text(f"{first}\na person was here\n{second}\n{third}\n")
    async with bus.transaction() as transaction:
        await transaction.append(LogEntry(type="entry 3", actor="test", data={}))
    store = recovered(bus)
    assert [line[:2] for line in picture_of(store)["log"]] == [(n + 1, f"entry {n}") for n in range(4)]
    assert "a person was here" in log.read_text()
    store.close()


async def test_a_segment_that_is_damaged_before_its_end_is_not_skipped(
    bus: BlockingBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.publish(event("Ping"))
    (segment,) = Path(bus.store.layout.journal).glob("*")
    monkeypatch.setattr(bus.store.journal, "remove_before", lambda _: None)
    bus.store.checkpoint()
    segment.write_bytes(segment.read_bytes()[:-10])
    with pytest.raises(Unavailable, match="damaged"):
        recovered(bus)


async def test_a_failed_transaction_leaves_nothing_in_the_index(bus: BlockingBus) -> None:
    def publish_and_fail() -> None:
        with bus.store.exclusive() as plan:
            plan.publish([EventCopy(TOPOLOGY.stream("free"), event("Ping"), None)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        publish_and_fail()
    with bus.store.exclusive() as plan:
        assert not plan.events.stream("free").rows
    bus.store.close()


async def test_an_entry_whose_files_could_not_be_written_is_still_read(realm: Path) -> None:
    disk = FullDisk(at=2)
    bus = BlockingBus(realm, disk)
    bus.store.open()
    disk.is_armed = True
    await bus.publish(event("Ping"))
    assert not disk.is_armed
    assert len(await bus.claim("free", 5, "w")) == 1
    bus.store.close()


async def test_the_directory_of_a_segment_is_synced_before_anything_is_committed_to_it(realm: Path) -> None:
    # The process is killed after it created its segment, and before it synced the directory.
    counting = CountingDisk()
    open_with(realm.parent, counting).close()
    made = counting.operations.index("open_for_appending")
    place = realm.parent / "killed"
    place.mkdir()
    kill(lambda: open_with(place, KillingDisk(made, "after")))
    disk = CountingDisk()
    store = open_with(place, disk)
    with store.exclusive() as plan:
        plan.entry.resumed.append("free")
        store.commit(plan)
    assert "sync_directory" in disk.operations[: disk.operations.index("write")]
    store.close()


async def test_the_directories_of_a_new_store_are_synced_before_its_first_entry(realm: Path) -> None:
    disk = CountingDisk()
    store = Store(str(realm), {}, disk)
    store.open()
    assert "sync_everything" in disk.operations[disk.operations.index("open_for_appending") :]
    store.close()


async def test_a_transaction_with_a_log_entry_is_synced_even_if_it_does_not_have_to_be_durable(
    bus: BlockingBus,
) -> None:
    synced = CountingDisk()
    bus.store.journal._disk = synced
    with bus.store.exclusive() as plan:
        entry = LogEntry(type="entry", actor="test", data={})
        plan.log(entry)
        bus.store.commit(plan, durable=False)
    assert "sync_file" in synced.operations
    bus.store.close()


async def test_recovery_after_a_past_day_of_the_log_was_removed_keeps_the_later_entries(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(LogEntry(type="entry 0", actor="test", data={}))
    bus.store.checkpoint()
    for number in (1, 2):
        os.utime(bus.store.layout.log, (0, 0))
        async with bus.transaction() as transaction:
            await transaction.append(LogEntry(type=f"entry {number}", actor="test", data={}))
    Path(bus.store.layout.logs, "events-19700101.log").unlink()
    store = recovered(bus)
    assert [line[1] for line in picture_of(store)["log"]] == ["entry 1", "entry 2"]
    store.close()


async def test_the_journal_is_synced_before_the_end_of_the_log_is_returned(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(LogEntry(type="entry", actor="test", data={}))
    await bus.publish(event("Ping"))
    await bus.claim("free", 1, "w")
    synced = CountingDisk()
    bus.store.journal._disk = synced
    assert await FilesOperations(bus).log_end() > LogCursor()
    assert synced.operations == ["sync_file"]
    bus.store.close()
