"""A store of files at its limits: the latest times, the deepest payloads, a replaced directory."""

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files.system.lock import StoreLock
from kingdom.bus import Defer, Done, Envelope, Record, RecordKind, Retry, Stream, Topology
from kingdom.errors import MalformedEvent, Misconfigured, Unavailable

ROOT = Path(__file__).parents[2]
TOPOLOGY = Topology(
    [
        Stream(name="free", subscribes=frozenset({"Ping"})),
        Stream(name="line", subscribes=frozenset({"Step"}), ordered=True),
    ]
)
JOBS = RecordKind(name="job", directories={"open": "state/jobs/open"})
LATEST = datetime.max.replace(tzinfo=UTC)


def opened(realm: Path) -> FilesBus:
    return FilesBus(realm, TOPOLOGY, [JOBS])


def ping(number: int = 0) -> Envelope:
    return Envelope(type="Ping", payload={"number": number})


def step(number: int, key: str = "k") -> Envelope:
    return Envelope(type="Step", partition_key=key, payload={"number": number})


async def numbers(bus: FilesBus, stream: str, limit: int = 10) -> list[int]:
    return [delivery.envelope.payload["number"] for delivery in await bus.claim(stream, limit, "worker")]


async def test_the_latest_possible_time_can_be_written_and_read_again(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1), at=LATEST)
        await bus.publish(ping(2), ping(3))
        first, second = await bus.claim("free", 10, "worker")
        async with bus.transaction() as transaction:
            await transaction.settle(first, Defer(LATEST, "never"))
            await transaction.settle(second, Retry(timedelta.max))
            await transaction.put(Record(kind="job", id="1", state="open", due_at=LATEST))
    async with opened(realm) as bus:
        assert await numbers(bus, "free") == []
        (stats,) = await FilesOperations(bus).stats()
        assert stats.pending == 3


async def test_a_payload_that_nests_too_deep_is_refused_and_every_accepted_payload_can_be_read(realm: Path) -> None:
    depths, accepted = range(900, 1100, 4), 0
    async with opened(realm) as bus:
        for depth in depths:
            with suppress(MalformedEvent, RecursionError):
                await bus.publish(Envelope(type="Ping", payload={"number": depth, "deep": nested(depth)}))
                accepted += 1
    assert 0 < accepted < len(depths)
    async with opened(realm) as bus:
        assert len(await numbers(bus, "free", limit=1000)) == accepted


def nested(depth: int) -> Any:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    return deep


@pytest.mark.parametrize("name", ["", "x" * 300])
async def test_a_stream_whose_name_cannot_be_a_directory_cannot_be_paused(realm: Path, name: str) -> None:
    async with opened(realm) as bus:
        with pytest.raises(Misconfigured):
            await FilesOperations(bus).pause(name, reason="test", actor="tester")
        await bus.publish(ping(1))
        assert await numbers(bus, "free") == [1]
    async with opened(realm) as bus:
        assert len(await FilesOperations(bus).stats()) == 1


async def test_an_event_whose_file_is_missing_for_a_moment_does_not_overtake_earlier_events_of_its_key(
    realm: Path,
) -> None:
    async with opened(realm) as bus:
        await bus.publish(step(0), step(1), step(2))
        _, follower, _ = sorted((realm / "bus/streams/line/pending").iterdir())
        away = follower.rename(f"{follower}~")
        (head,) = await bus.claim("line", 10, "worker")
        away.rename(follower)
        (row,) = [row for row in bus.store.events.stream("line").rows.values() if row.position == head.position + 1]
        assert row.due is None
        async with bus.transaction() as transaction:
            await transaction.settle(head, Done())
        assert await numbers(bus, "line") == [1, 2]


async def test_an_unreadable_event_at_the_start_holds_back_the_events_after_it(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(step(0), step(1), step(2, "other"))
        await bus.publish(ping(7))
    first = min((realm / "bus/streams/line/pending").iterdir())
    whole = first.read_text()
    first.write_text(whole[:50])
    async with opened(realm) as bus:
        assert await numbers(bus, "line") == []
        assert await numbers(bus, "free") == [7]
        first.write_text(whole)
        assert sorted(await numbers(bus, "line")) == [0, 1, 2]


async def test_a_store_that_was_replaced_under_a_process_is_not_written_to(realm: Path) -> None:
    async with opened(realm) as old:
        await old.publish(ping(1))
        shutil.rmtree(realm)
        async with opened(realm) as new:
            with pytest.raises(Unavailable, match="restart this process"):
                await old.publish(ping(2))
            await new.publish(ping(3))
            assert await numbers(new, "free") == [3]


async def test_the_index_in_memory_of_a_process_that_only_publishes_stays_small(realm: Path) -> None:
    async with opened(realm) as publisher, opened(realm) as worker:
        for _ in range(8):
            await publisher.publish(*map(ping, range(1000)))
            while deliveries := await worker.claim("free", 1000, "worker"):
                async with worker.transaction() as transaction:
                    for delivery in deliveries:
                        await transaction.settle(delivery, Done())
        assert len(publisher.store.events.stream("free")._due) < 5000


async def test_dedup_keys_survive_a_plain_copy(realm: Path, tmp_path: Path) -> None:
    async with opened(realm) as bus, bus.transaction() as transaction:
        for scope in ("webhook", "seen"):
            assert await transaction.once(scope, "delivery-1", timedelta(days=30))
    # Like `cp -r`: the modification times are those of the copy.
    shutil.copytree(realm, tmp_path / "copy", copy_function=shutil.copyfile)
    async with opened(tmp_path / "copy") as bus, bus.transaction() as transaction:
        for scope in ("webhook", "seen"):
            assert not await transaction.once(scope, "delivery-1", timedelta(days=30))


async def test_the_lease_of_a_killed_process_expires_at_once(realm: Path) -> None:
    code = (
        "import asyncio, sys, tests.integration.test_files_extremes as t\n"
        "async def main():\n"
        "    async with t.opened(sys.argv[1]) as bus:\n"
        "        print(len(await bus.claim('free', 10, 'child')), flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    async with opened(realm) as bus:
        await bus.publish(ping(1))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(realm)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert child.stdout
        assert await child.stdout.readline() == b"1\n"
        assert await bus.reap() == 0
        child.send_signal(signal.SIGKILL)
        await child.wait()
        assert await bus.reap() == 1
        assert await numbers(bus, "free") == [1]


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = StoreLock(str(tmp_path / "lock"))
    child = os.fork()
    if not child:
        try:
            os.fstat(lock._descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock.held():
        lock.applied = 7
    lock.close()


async def test_a_path_where_no_store_can_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises((Misconfigured, Unavailable)):
            async with opened(tmp_path / name):
                pass
