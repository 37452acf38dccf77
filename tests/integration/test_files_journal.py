"""The journal of a store of files: numbers never repeat, and damage does not count as a torn end."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kingdom.backends.files import store as store_module
from kingdom.backends.files.index.event_index import EventIndex
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.bus import Done, Envelope
from kingdom.bus.port import EventCopy
from kingdom.errors import Permanent, Unavailable
from tests.integration.crash_picture import picture_of
from tests.integration.crash_scenes import TOPOLOGY, BlockingBus, event
from tests.integration.power_loss import Effect, RecordingDisk


@pytest.fixture
def bus(realm: Path) -> BlockingBus:
    bus = BlockingBus(realm)
    bus.store.open()
    return bus


def open_files(realm: Path) -> list[str]:
    """Return the files below a realm that this process has open."""
    links = (each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return [str(link) for link in links if link.is_relative_to(realm)]


async def test_a_closed_store_has_no_open_file(realm: Path, bus: BlockingBus) -> None:
    await bus.publish(event("Ping"))
    assert open_files(realm)
    bus.store.close()
    assert open_files(realm) == []


async def test_a_position_beyond_its_journal_entry_is_refused_and_stores_nothing(bus: BlockingBus) -> None:
    def publish(plan: TransactionPlan, *, gap: int) -> None:
        plan.offset += gap
        plan.publish([EventCopy(TOPOLOGY.stream("free"), event("Ping"), None)])
        plan.offset -= gap
        bus.store.commit(plan)

    with pytest.raises(Permanent, match="beyond the end of its journal entry"), bus.store.exclusive() as plan:
        publish(plan, gap=2000)
    with bus.store.exclusive() as plan:
        assert not plan.events.stream("free").rows
        publish(plan, gap=0)
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


@pytest.mark.parametrize(("text", "needs_thread"), [("short", False), ("x" * 100_000, True)], ids=["short", "long"])
async def test_only_a_long_unread_part_of_the_journal_is_read_in_the_thread(
    realm: Path, bus: BlockingBus, text: str, *, needs_thread: bool
) -> None:
    another = BlockingBus(realm)
    another.store.open()
    await bus.publish(event("Ping"))
    assert len(await bus.claim("free", 1, "w")) == 1
    await another.publish(Envelope(type="Ping", payload={"text": text}))
    in_thread = list[bool]()

    async def note_and_act(act: Callable[[], Any]) -> Any:
        in_thread.append(True)
        return act()

    bus.run_in_thread = note_and_act
    assert len(await bus.claim("free", 1, "w")) == 1
    assert in_thread == [True] * needs_thread
    for each in (bus, another):
        each.store.close()


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
    # Do what the error says.
    segment.write_bytes(b"".join(lines))
    again = reopened_after_a_restart(bus)
    assert len(await again.claim("free", 9, "w")) == 5
    again.store.close()


async def test_an_incomplete_last_entry_is_cut_off(bus: BlockingBus) -> None:
    await bus.publish(event("Ping", number=1))
    size = segment_of(bus).stat().st_size
    await bus.publish(event("Ping", number=2))
    (segment_of(bus)).write_bytes(segment_of(bus).read_bytes()[:-10])
    again = reopened_after_a_restart(bus)
    assert segment_of(again).stat().st_size == size
    again.store.close()


async def test_an_unsynced_claim_lost_with_power_is_cut_off_with_the_unsynced_entry_after_it(
    bus: BlockingBus,
) -> None:
    await bus.publish(event("Ping", number=1))
    size = segment_of(bus).stat().st_size
    (delivery,) = await bus.claim("free", 1, "w")
    claimed = segment_of(bus).stat().st_size
    async with bus.transaction([delivery]) as transaction:
        await transaction.settle(delivery, Done())
    content = bytearray(segment_of(bus).read_bytes())
    # A power loss after the page with the settlement was written, but not the page with the claim.
    content[size:claimed] = bytes(claimed - size)
    segment_of(bus).write_bytes(content)
    again = reopened_after_a_restart(bus)
    assert segment_of(again).stat().st_size == size
    again.store.close()


class ForgetfulDisk(RecordingDisk):
    """Fails one sync as a real disk does: the data is lost, and later syncs succeed."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.is_armed = False
        self._gone: set[int] = set()

    def around(self, name: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        if name != "sync_file" or not self.is_armed:
            return super().around(name, arguments, act)
        self.is_armed = False
        of_file = [effect for effect in self.effects if effect.file == self._descriptors[arguments[0]]]
        self._gone.update(id(effect) for effect in of_file if effect.lasts_from is None)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _last(self, at: int, chosen: Callable[[Effect], bool]) -> None:
        super()._last(at, lambda effect: id(effect) not in self._gone and chosen(effect))


async def test_data_acknowledged_after_a_failed_sync_survives_a_loss_of_power(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    disk = ForgetfulDisk(stage)
    bus = BlockingBus(stage / "realm", disk)
    bus.store.open()
    events = [event("Ping", number=number) for number in range(4)]
    await bus.publish(*events[:2])
    # A claim is not synced, so the failing sync is its first one.
    (delivery,) = await bus.claim("free", 1, "w")
    disk.is_armed = True
    with pytest.raises(Unavailable, match="try again"):
        await bus.publish(events[2])
    assert await bus.publish(events[2]) == ()
    async with bus.transaction([delivery]) as transaction:
        await transaction.settle(delivery, Done())
    await bus.publish(events[3])
    for number, kept in enumerate(disk.losses(len(disk.operations))):
        dark = BlockingBus(disk.state(kept).build(tmp_path / f"dark-{number}") / "realm")
        dark.store.boot = "another"
        dark.store.open()
        claimed = await dark.claim("free", 9, "w")
        assert [each.envelope.payload["number"] for each in claimed] == [1, 2, 3]
        dark.store.close()
    bus.store.close()


class FailingDisk(Disk):
    """Fails the named operations."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    def sync_file(self, descriptor: int) -> None:
        self._maybe_fail("sync_file")
        super().sync_file(descriptor)

    def truncate(self, path: str, size: int) -> None:
        self._maybe_fail("truncate")
        super().truncate(path, size)

    def create(self, path: str, data: bytes) -> None:
        self._maybe_fail("create")
        super().create(path, data)

    def _maybe_fail(self, name: str) -> None:
        if name in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("failing", [{"sync_file"}, {"sync_file", "truncate"}, {"sync_file", "truncate", "create"}])
@pytest.mark.parametrize("who_comes_next", ["the same", "another", "a new one"])
async def test_after_a_failed_sync_the_next_process_rewrites_the_segment_and_all_others_follow(
    realm: Path, failing: set[str], who_comes_next: str
) -> None:
    disk = FailingDisk()
    ours, another = BlockingBus(realm, disk), BlockingBus(realm)
    ours.store.open()
    another.store.open()
    await ours.publish(event("Ping", number=0))
    assert len(await another.claim("free", 1, "w")) == 1
    before = segment_of(ours).stat().st_ino
    disk.failing = failing
    for _ in range(2):
        with pytest.raises(Unavailable, match="try again"):
            await ours.publish(event("Ping", number=1))
    disk.failing = set()
    new = BlockingBus(realm)
    new.store.open()
    buses = {"the same": ours, "another": another, "a new one": new}
    first = buses.pop(who_comes_next)
    await first.publish(event("Ping", number=2))
    assert segment_of(ours).stat().st_ino != before
    for number, bus in enumerate(buses.values(), 3):
        await bus.publish(event("Ping", number=number))
    assert first.store.journal.end_on_disk() is not None
    claimed = await first.claim("free", 9, "w")
    assert [each.envelope.payload["number"] for each in claimed] == [2, 3, 4]
    for bus in (ours, another, new):
        bus.store.close()
    restarted = reopened_after_a_restart(first)
    assert len(picture_of(restarted.store)["events"]["free"]) == 4
    restarted.store.close()


async def test_a_checkpoint_that_cannot_start_does_not_fail_the_preceding_commit(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullForSegments(Disk):
        is_full = False

        def open_for_appending(self, path: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().open_for_appending(path)

    disk = FullForSegments()
    bus = BlockingBus(realm, disk)
    bus.store.open()
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 1)
    disk.is_full = True
    await bus.publish(event("Ping", number=0))
    with pytest.raises(Unavailable, match="free some space"):
        await bus.publish(event("Ping", number=1))
    disk.is_full = False
    await bus.publish(event("Ping", number=2))
    claimed = await bus.claim("free", 9, "w")
    assert [each.envelope.payload["number"] for each in claimed] == [0, 2]
    bus.store.close()


async def test_an_index_that_could_not_be_reloaded_after_a_failed_commit_is_not_used(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    bus = BlockingBus(realm, disk)
    bus.store.open()

    def fail() -> EventIndex:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    disk.failing = {"sync_file"}
    with monkeypatch.context() as patch:
        patch.setattr(bus.store, "load_events", fail)
        with pytest.raises(Unavailable):
            await bus.publish(event("Ping", number=1))
    disk.failing = set()
    with bus.store.exclusive() as plan:
        assert not plan.events.stream("free").rows
    bus.store.close()
