"""Export and import of files: other files in the directory, damaged files, and concurrent processes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.backends.files import FilesBus, FilesTransfer
from kingdom.backends.files.store import Store
from kingdom.bus import Done, Record, RecordKind
from kingdom.bus.record import Adoption
from kingdom.errors import Misconfigured, Permanent
from kingdom.storage.transfer import AnyItem, ItemCounts, Manifest, RecordItem
from tests.contract.backends import FilesBackend
from tests.contract.scene import KINDS, TOPOLOGY, Scene, eventually, ping
from tests.integration.store_states import LONG_AGO, fill_every_state

NOTHING = Manifest(census=ItemCounts(), last_position=1, last_token=1)
LETTER = RecordKind(
    name="letter",
    directories={"new": "letters/new", "read": "letters/read"},
    adoption=Adoption(
        state="new",
        read=lambda doc: Record(kind="letter", id="dropped", state="new", doc=doc),
        announce=lambda _: ping(),
    ),
)


@pytest.fixture
async def bus(realm: Path) -> AsyncIterator[FilesBus]:
    async with FilesBus(realm, TOPOLOGY, (*KINDS, LETTER)) as bus:
        yield bus


async def exported_states(place: Path) -> tuple[Manifest, list[AnyItem]]:
    backend = FilesBackend(str(place))
    async with FilesBus(place, TOPOLOGY, KINDS) as bus:
        await fill_every_state(Scene(backend, bus, backend.operations(bus)))
        return await everything(bus)


async def everything(bus: FilesBus) -> tuple[Manifest, list[AnyItem]]:
    async with FilesTransfer(bus).snapshot() as snapshot:
        return snapshot.manifest, [item async for item in snapshot.items]


async def each(items: list[AnyItem]) -> AsyncIterator[AnyItem]:
    for item in items:
        yield item


def files(place: Path) -> set[Path]:
    """Return all files except the journal."""
    journal = place / "bus" / "journal"
    return {path for path in place.rglob("*") if path.is_file() and path.parent != journal}


def letter(name: str) -> RecordItem:
    return RecordItem(
        kind="letter",
        id=name,
        version=1,
        state="new",
        index_1=None,
        due_at=None,
        doc={},
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
        ended_at=None,
    )


async def test_a_failed_import_removes_only_its_own_files(bus: FilesBus, realm: Path, tmp_path: Path) -> None:
    manifest, items = await exported_states(tmp_path / "old")
    (realm / "logs" / "sessions").mkdir()
    (realm / "letters" / "new" / "dropped.json").write_text('{"dear": "king"}')
    for name in ("logs/system.log", "logs/sessions/one.json", "logs/events-of-the-court.log", "bus/paused/why.txt"):
        (realm / name).write_text("precious")
    before = files(realm)
    dropped = realm / "closed" / "meanwhile.json"

    async def interrupted() -> AsyncIterator[AnyItem]:
        for item in items:
            yield item
        dropped.parent.mkdir(exist_ok=True)
        dropped.write_text("{}")

    with pytest.raises(Permanent, match="the store has other counts than the export"):
        await FilesTransfer(bus).import_items(interrupted(), msgspec.structs.replace(manifest, census=ItemCounts()))
    assert files(realm) == before | {dropped}
    dropped.unlink()
    assert (await FilesTransfer(bus).import_items(each(items), manifest)) == manifest.census


async def test_an_import_that_fails_in_its_second_batch_removes_the_first(bus: FilesBus, realm: Path) -> None:
    before = files(realm)
    items: list[AnyItem] = [letter(f"letter-{number}") for number in range(1500)]
    with pytest.raises(Permanent, match="this twice: record letter-0"):
        await FilesTransfer(bus).import_items(each([*items, letter("letter-0")]), NOTHING)
    assert files(realm) == before


async def test_a_file_in_the_place_of_a_record_is_not_overwritten(bus: FilesBus, realm: Path) -> None:
    dropped = realm / "letters" / "new" / "mine.json"

    async def in_the_way() -> AsyncIterator[AnyItem]:
        dropped.write_text('{"dear": "king"}')
        yield letter("mine")

    with pytest.raises(Permanent, match=r"needs the path .*letters/new/mine\.json, which exists: move that file"):
        await FilesTransfer(bus).import_items(in_the_way(), NOTHING)
    assert dropped.read_text() == '{"dear": "king"}'


_KILLED = """
import asyncio, os, sys
from kingdom.backends.files import FilesBus, FilesTransfer
from tests.integration.test_moving_files import LETTER, NOTHING, TOPOLOGY, letter

async def items():
    for number in range(1500):
        yield letter(f"letter-{number}")
    os.kill(os.getpid(), 9)

async def main():
    async with FilesBus(sys.argv[1], TOPOLOGY, (LETTER,)) as bus:
        await FilesTransfer(bus).import_items(items(), NOTHING)

asyncio.run(main())
"""


async def test_a_store_of_a_killed_import_is_not_used(bus: FilesBus, realm: Path) -> None:
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", _KILLED, str(realm)], check=False)
    assert killed.returncode == -9
    assert len(list((realm / "letters" / "new").iterdir())) == 1000
    with pytest.raises(Misconfigured, match="did not finish: remove the directory, then import again"):
        await bus.claim("free", 1, "worker")
    with pytest.raises(Misconfigured, match="did not finish"):
        async with FilesBus(realm, TOPOLOGY):
            pass


async def test_an_import_that_is_cancelled_leaves_nothing(bus: FilesBus, realm: Path) -> None:
    before, waiting = files(realm), asyncio.Event()

    async def endless() -> AsyncIterator[AnyItem]:
        for number in range(1000):
            yield letter(f"letter-{number}")
        waiting.set()
        await asyncio.Event().wait()

    importing = asyncio.create_task(FilesTransfer(bus).import_items(endless(), NOTHING))
    await waiting.wait()
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    assert files(realm) == before
    await bus.publish(ping())


async def test_a_cancelled_move_releases_the_store(bus: FilesBus, realm: Path) -> None:
    somebody = Store(str(realm), {})
    somebody.open()
    with somebody.exclusive():
        importing = asyncio.create_task(FilesTransfer(bus).import_items(each([]), NOTHING))
        await eventually(lambda: any("kingdom-moving" in each.name for each in threading.enumerate()), "it waits")
        importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    with somebody.exclusive():
        pass
    somebody.close()
    # From another thread, like a renewal of leases.
    assert not (await asyncio.to_thread(bus.renew, {})).alive


async def test_events_published_by_the_same_bus_wait_for_the_end_of_the_move(bus: FilesBus, tmp_path: Path) -> None:
    manifest, items = await exported_states(tmp_path / "old")
    late: list[asyncio.Task[Any]] = []

    async def interrupted() -> AsyncIterator[AnyItem]:
        late.append(asyncio.create_task(bus.publish(ping())))
        for item in items:
            await asyncio.sleep(0)
            yield item
        assert not late[0].done()

    assert await FilesTransfer(bus).import_items(interrupted(), manifest) == manifest.census
    await late[0]
    assert (await everything(bus))[0].census.open_events == manifest.census.open_events + 1


def damage(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize(("spoil", "reason"), [(damage, "truncated"), (Path.unlink, "missing")])
async def test_an_event_that_cannot_be_read_is_named_before_anything_is_exported(
    bus: FilesBus, realm: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    await bus.publish(ping(1))
    await bus.publish(ping(2))
    first, second = sorted((realm / "bus/streams/free/pending").iterdir())
    content = first.read_text()
    spoil(first)
    with pytest.raises(Permanent, match=r"cannot read 1 file\(s\): .* then try again") as refusal:
        async with FilesTransfer(bus).snapshot():
            pytest.fail("it begins to export")
    assert str(first) in str(refusal.value)
    assert reason in str(refusal.value)
    assert str(second) not in str(refusal.value)
    first.write_text(content)
    assert (await everything(bus))[0].census == ItemCounts(open_events=2)


async def test_many_events_that_cannot_be_read_are_counted(bus: FilesBus, realm: Path) -> None:
    await bus.publish(*map(ping, range(7)))
    for path in (realm / "bus/streams/free/pending").iterdir():
        damage(path)
    with pytest.raises(Permanent, match=r"cannot read 7 file\(s\): .* and 2 more; fix or remove"):
        await everything(bus)


async def test_a_damaged_line_of_an_ended_event_is_named(bus: FilesBus, realm: Path) -> None:
    await bus.publish(ping())
    held = await bus.claim("free", 1, "worker")
    async with bus.transaction(held) as transaction:
        await transaction.settle(held[0], Done())
    (day,) = (realm / "bus/streams/free/done").iterdir()
    day.write_text('{"half\n' + day.read_text())
    with pytest.raises(Permanent, match=r"cannot read 1 file\(s\): a line in .*/bus/streams/free/done"):
        await everything(bus)


async def test_a_damaged_record_is_reported(bus: FilesBus, realm: Path) -> None:
    async with bus.transaction() as transaction:
        await transaction.put(Record(kind="job", id="a", state="open"))
    damage(realm / "open" / "a.json")
    async with FilesBus(realm, TOPOLOGY, KINDS) as other:
        with pytest.raises(Permanent, match=r"cannot read 1 file\(s\): .*/open/a\.json"):
            await everything(other)


@pytest.mark.parametrize("knows_kind", [True, False])
async def test_records_of_a_renamed_kind_are_listed_once(realm: Path, *, knows_kind: bool) -> None:
    async with FilesBus(realm, TOPOLOGY, KINDS) as bus, bus.transaction() as transaction:
        await transaction.put(Record(kind="job", id="a", state="open"))
    renamed = RecordKind(name="errand", directories={"open": "open", "closed": "closed"})
    async with FilesBus(realm, TOPOLOGY, [renamed]):
        pass
    async with FilesBus(realm, TOPOLOGY, [renamed] if knows_kind else []) as bus:
        _, items = await everything(bus)
    assert [(item.kind, item.id) for item in items if isinstance(item, RecordItem)] == [("errand", "a")]
