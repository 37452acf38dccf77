"""The temporary file store of `kingdom bus verify`: its checks must find every inconsistency."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesTrialStore
from kingdom.bus import Dead, Done, Envelope, LogEntry
from kingdom.verify.workload import ANY, LINE, topology

NAME = "kingdom_verify_test"
HOLD_THE_LOCK = """
import fcntl, sys
with open(sys.argv[1]) as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    input()
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesTrialStore]:
    store = FilesTrialStore(tmp_path, NAME)
    await store.create()
    yield store
    await store.drop()


@pytest.fixture
async def bus(store: FilesTrialStore) -> AsyncIterator[FilesBus]:
    async with FilesBus(store.url.removeprefix("file:"), topology(timedelta(seconds=30))) as bus:
        yield bus


def in_line(count: int) -> list[Envelope]:
    return [Envelope(type="Job", stream=LINE, partition_key="key") for _ in range(count)]


def events(root: Path, status: str) -> list[Path]:
    return sorted((root / "bus" / "streams" / LINE / status).iterdir())


def two_heads(root: Path) -> None:
    first, second, _ = events(root, "pending")
    shown = json.loads(second.read_text())
    shown["_kingdom"]["dueAt"] = json.loads(first.read_text())["_kingdom"]["dueAt"]
    second.write_text(json.dumps(shown))


def no_file(root: Path) -> None:
    events(root, "pending")[-1].unlink()


def a_file_too_many(root: Path) -> None:
    dead = root / "bus" / "streams" / LINE / "dead"
    dead.mkdir()
    shutil.copy(events(root, "pending")[0], dead)


def an_ended_event_that_is_pending_again(root: Path) -> None:
    path, (done,) = events(root, "pending")[0], events(root, "done")[0].read_text().splitlines()
    shown, event_id = json.loads(path.read_text()), json.loads(done)["event"]["eventId"]
    path.write_text(json.dumps({**shown, "eventId": event_id}))
    path.rename(path.with_name(f"{path.name.partition('-')[0]}-{event_id}.json"))


def other_attempts_in_a_file(root: Path) -> None:
    path = events(root, "pending")[1]
    shown = json.loads(path.read_text())
    shown["_kingdom"]["attempts"] = 7
    path.write_text(json.dumps(shown))


def ended_twice(root: Path) -> None:
    done = events(root, "done")[0]
    done.write_text(done.read_text() * 2)


def no_lease(root: Path) -> None:
    for lease in (root / "bus" / "leases").iterdir():
        lease.unlink()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (two_heads, "two heads: verify.line/key"),
        (no_file, "is only in the index"),
        (other_attempts_in_a_file, "in its file"),
        (a_file_too_many, "4 files for 3 events: verify.line"),
        (an_ended_event_that_is_pending_again, "event twice in its stream: verify.line"),
        (ended_twice, "event ended twice: verify.line"),
        (no_lease, "is only in the index"),
    ],
)
async def test_errors_in_the_files_are_named(
    store: FilesTrialStore, bus: FilesBus, tmp_path: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    await bus.publish(*in_line(1))
    (done,) = await bus.claim(LINE, 1, "worker")
    async with bus.transaction() as transaction:
        await transaction.settle(done, Done())
    await bus.publish(Envelope(type="Job", stream=ANY))
    assert len(await bus.claim(ANY, 1, "worker")) == 1
    await bus.publish(*in_line(3))
    assert await store.broken_invariants() == []
    damage(tmp_path / NAME)
    assert [words for words in await store.broken_invariants() if complaint in words]


async def test_an_index_in_memory_that_differs_from_the_files_is_named(store: FilesTrialStore, bus: FilesBus) -> None:
    await bus.publish(*in_line(2))
    assert await store.broken_invariants() == []
    store._store.events.stream(LINE).remove(min(store._store.events.stream(LINE).rows))
    assert [words for words in await store.broken_invariants() if "is only in the files" in words]


async def test_every_event_is_shown_with_its_end_and_the_token_that_settled_it(
    store: FilesTrialStore, bus: FilesBus
) -> None:
    await bus.publish(*(Envelope(type="Job", stream=ANY) for _ in range(3)))
    assert await store.unfinished() == 3
    done, dead = await bus.claim(ANY, 2, "worker")
    async with bus.transaction() as transaction:
        await transaction.settle(done, Done())
        await transaction.settle(dead, Dead("no use", "useless"))
    assert await store.unfinished() == 1
    found = [(event.position, event.status, event.error_code) for event in await store.events()]
    assert [(status, code) for _, status, code in found] == [("DONE", None), ("DEAD", "useless"), ("PENDING", None)]
    assert [position for position, *_ in found][:2] == [done.position, dead.position]
    assert (await store.events())[0].token == done.token


async def test_the_log_is_read_in_the_order_of_its_transactions(store: FilesTrialStore, bus: FilesBus) -> None:
    for first in (1, 3):
        async with bus.transaction() as transaction:
            await transaction.append(
                *(LogEntry(type="traced", actor="test", data={"number": number}) for number in (first, first + 1)),
                LogEntry(type="other", actor="test"),
            )
    assert [data["number"] for data in await store.log_data("traced")] == [1, 2, 3, 4]


def test_the_holder_of_the_lock_is_known(tmp_path: Path) -> None:
    store = FilesTrialStore(tmp_path, NAME)
    asyncio.run(store.create())
    assert store.holders() == []
    words = [sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path / NAME / "bus" / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert store.holders() == [holder.pid]
        holder.communicate("\n")
    assert store.holders() == []
    asyncio.run(store.drop())


@pytest.mark.parametrize("keep", [True, False])
async def test_a_slow_transaction_is_committed_or_rolled_back_as_requested(
    store: FilesTrialStore, bus: FilesBus, *, keep: bool
) -> None:
    async with store.slow_transaction(bus, seconds=0, keep=keep) as transaction:
        await transaction.publish(Envelope(type="Job", stream=ANY))
        assert await store.unfinished() == 0
    assert await store.unfinished() == int(keep)


async def test_a_process_under_test_gets_the_address_of_the_same_directory(
    store: FilesTrialStore, bus: FilesBus
) -> None:
    await bus.publish(Envelope(type="Job", stream=ANY))
    assert await FilesTrialStore(Path(store.url.removeprefix("file:")), NAME).unfinished() == 1


def test_a_dropped_store_leaves_nothing(tmp_path: Path) -> None:
    store = FilesTrialStore(tmp_path / "realm", NAME)
    asyncio.run(store.create())
    assert (tmp_path / "realm" / NAME).is_dir()
    asyncio.run(store.drop())
    assert list(tmp_path.iterdir()) == []
