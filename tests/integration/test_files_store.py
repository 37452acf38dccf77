"""A store of files on a laptop: other hosts, full disks, old logs, long sleeps."""

import asyncio
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesOperations, store
from kingdom.backends.files import bus as files_bus
from kingdom.backends.files.system import host
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.tree import log
from kingdom.bus import Done, Envelope, LogCursor, LogEntry, Record, RecordKind, Stream, Topology
from kingdom.bus.operations import Retention
from kingdom.errors import Misconfigured, NotFound, Unavailable
from tests.patience import PATIENCE_SECONDS

TOPOLOGY = Topology([Stream(name="free", subscribes=frozenset({"Ping"}))])
DAY = timedelta(days=1)
START = LogCursor()
JOBS = RecordKind(
    name="job",
    directories={"open": "state/jobs/open", "closed": "state/jobs/closed"},
    final=frozenset({"closed"}),
    indexes=("owner",),
    retention=7 * DAY,
)
ROOT = Path(__file__).parents[2]


def ping(number: int = 0) -> Envelope:
    return Envelope(type="Ping", payload={"number": number})


def opened(realm: Path, disk: Disk | None = None) -> FilesBus:
    return FilesBus(realm, TOPOLOGY, [JOBS], disk=disk)


async def append(bus: FilesBus, *names: str) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(*(LogEntry(type=name, actor="tester") for name in names))


async def types(bus: FilesBus, after: LogCursor = START, limit: int = 100) -> list[str]:
    return [logged.entry.type for logged in await FilesOperations(bus).read_log(after, limit)]


async def drain(bus: FilesBus) -> list[int]:
    numbers = []
    while deliveries := await bus.claim("free", 100, "worker"):
        async with bus.transaction() as transaction:
            for delivery in deliveries:
                await transaction.settle(delivery, Done())
                numbers.append(delivery.envelope.payload["number"])
    return numbers


async def test_only_its_owner_may_read_a_store(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2))
        (first, _) = await bus.claim("free", 2, "worker")
        async with bus.transaction() as transaction:
            await transaction.settle(first, Done())
            await transaction.put(Record(kind="job", id="1", state="open"))
            await transaction.once("scope", "key", DAY)
            await transaction.append(LogEntry(type="a", actor="tester"))
        await FilesOperations(bus).pause("free", reason="test", actor="tester")
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [realm, *realm.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


async def test_a_store_of_another_host_is_refused_with_the_name_of_that_host(realm: Path) -> None:
    async with opened(realm):
        pass
    (realm / "bus/host.json").write_text(json.dumps({"machine": "other", "name": "anna's laptop"}))
    with pytest.raises(Misconfigured, match=r"belongs to the host anna's laptop.*only one host can use a store"):
        async with opened(realm):
            pass


async def test_a_network_filesystem_is_refused(realm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"40 22 0:50 / {tmp_path} rw,relatime shared:1 - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(host, "_MOUNTS", mounts)
    with pytest.raises(Misconfigured, match=r"nfs4 filesystem.*use a local directory, or PostgreSQL"):
        async with opened(realm):
            pass
    mounts.write_text(mounts.read_text().replace("nfs4", "xfs"))
    async with opened(realm) as bus:
        await bus.publish(ping())


async def test_reading_does_not_create_a_missing_store(realm: Path) -> None:
    with pytest.raises(NotFound, match="there is no store at"):
        async with FilesBus(realm, TOPOLOGY, create=False):
            pass
    assert not realm.exists()


class FullDisk(Disk):
    """While it is full, one kind of operation fails."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.full = False

    def _write(self, operation: str) -> None:
        if self.full and operation == self.operation:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, descriptor: int, data: bytes) -> None:
        if self.full and self.operation == "write":
            super().write(descriptor, data[: len(data) // 2])
        self._write("write")
        super().write(descriptor, data)

    def sync_file(self, descriptor: int) -> None:
        self._write("sync")
        super().sync_file(descriptor)

    def create(self, path: str, data: bytes) -> None:
        self._write("create")
        super().create(path, data)


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_an_event_whose_journal_entry_has_no_space_is_never_published(realm: Path, operation: str) -> None:
    disk = FullDisk(operation)
    async with opened(realm, disk) as bus:
        await bus.publish(ping(1))
        disk.full = True
        with pytest.raises(Unavailable, match="free some space"):
            await bus.publish(ping(2))
        disk.full = False
        await bus.publish(ping(3))
        assert await drain(bus) == [1, 3]


async def test_an_entry_in_the_journal_is_published_even_if_its_files_are_not_written_yet(realm: Path) -> None:
    disk = FullDisk("create")
    async with opened(realm, disk) as bus:
        disk.full = True
        await bus.publish(ping(1))
        with pytest.raises(Unavailable, match="free some space"):
            await bus.claim("free", 10, "worker")
        disk.full = False
        assert await drain(bus) == [1]


async def test_an_incomplete_end_of_the_journal_is_cut_off_and_kept_separately(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1))
    (journal,) = (realm / "bus/journal").iterdir()
    with journal.open("ab") as file:
        file.write(b'00000000 17 {"rows": [half of it')
    async with opened(realm) as bus:
        await bus.publish(ping(2))
        assert await drain(bus) == [1, 2]
    assert b"half of it" in b"".join(path.read_bytes() for path in (realm / "bus/journal").glob("torn-*"))


async def test_a_bus_that_missed_whole_segments_reads_the_files_again(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SEGMENT_BYTES", 10_000)
    async with opened(realm) as sleeper, opened(realm) as busy:
        await sleeper.publish(ping(0))
        for number in range(1, 60):
            await busy.publish(ping(number))
        await busy.run_in_thread(busy.store.checkpoint)
        assert len(list((realm / "bus/journal").iterdir())) == 1
        assert await drain(sleeper) == list(range(60))


async def test_a_worker_is_woken_by_another_process(realm: Path) -> None:
    code = (
        "import asyncio, sys; from kingdom.backends.files import FilesBus; from tests.integration import "
        "test_files_store as t\n"
        "async def main():\n"
        "    async with t.opened(sys.argv[1]) as bus:\n"
        "        await asyncio.to_thread(sys.stdin.readline)\n"
        "        await bus.publish(t.ping(7))\n"
        "asyncio.run(main())"
    )
    async with opened(realm) as bus:
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(realm)), stdin=asyncio.subprocess.PIPE, cwd=ROOT
        )
        # The first wait starts the watcher, which wakes all workers once.
        await bus.wait(["free"], timedelta(seconds=1))
        waiting = asyncio.create_task(bus.wait(["free"], timedelta(hours=1)))
        assert other.stdin
        other.stdin.write(b"\n")
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert await other.wait() == 0
        assert await drain(bus) == [7]


async def test_the_log_is_split_by_day_and_a_reader_continues(realm: Path) -> None:
    async with opened(realm) as bus:
        await append(bus, "one", "two")
        first = (await FilesOperations(bus).read_log(LogCursor(), 1))[0]
        yesterday = datetime.now(UTC) - DAY
        os.utime(realm / "logs/events.log", (yesterday.timestamp(), yesterday.timestamp()))
        await append(bus, "three")
        await append(bus, "four")
        assert (realm / f"logs/events-{yesterday:%Y%m%d}.log").read_text().count("\n") == 2
        assert (realm / "logs/events.log").read_text().count("\n") == 2
        assert await types(bus) == ["one", "two", "three", "four"]
        assert await types(bus, first.cursor) == ["two", "three", "four"]
        assert await types(bus, first.cursor, limit=2) == ["two", "three"]
    async with opened(realm) as bus:
        await append(bus, "five")
        assert await types(bus) == ["one", "two", "three", "four", "five"]


async def test_a_large_log_is_kept_in_parts(realm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOG_BYTES", 1000)
    names = [f"entry-{number}" for number in range(40)]
    async with opened(realm) as bus:
        for name in names:
            await append(bus, name)
        parts = sorted(path.name for path in (realm / "logs").iterdir())
        assert len(parts) > 3
        assert await types(bus) == names
        seen, cursor = [], LogCursor()
        while found := await FilesOperations(bus).read_log(cursor, 3):
            cursor = found[-1].cursor
            seen += [logged.entry.type for logged in found]
        assert seen == names


async def test_retention_counts_from_the_end_of_an_item(realm: Path) -> None:
    old = time.time() - 8 * DAY.total_seconds()
    async with opened(realm) as bus:
        async with bus.transaction() as transaction:
            for name, state in (("old", "closed"), ("new", "closed"), ("open", "open")):
                await transaction.put(Record(kind="job", id=name, state=state))
            await transaction.once("scope", "expired", timedelta(0))
            await transaction.once("seen", "evt-1", 30 * DAY)
        path = realm / "state/jobs/closed/old.json"
        ended = datetime.fromtimestamp(old, UTC).isoformat().replace("+00:00", "Z")
        doc = json.loads(path.read_text())
        path.write_text(json.dumps({**doc, "_kingdom": {**doc["_kingdom"], "endedAt": ended}}))
        # The open record is old as well, but not ended.
        path = realm / "state/jobs/open/open.json"
        path.write_text(path.read_text().replace(str(datetime.now(UTC).year), "2020"))
        await bus.publish(ping(1))
        await drain(bus)
        await append(bus, "a")
        done = realm / "bus/streams/free/done"
        (today,) = done.iterdir()
        today.rename(done / "20200101.jsonl")
        (realm / "logs/events.log").rename(realm / "logs/events-20200101.log")
        report = await FilesOperations(bus).retain(Retention())
        async with bus.transaction() as transaction:
            left = [name for name in ("old", "new", "open") if await transaction.get("job", name)]
    assert left == ["new", "open"]
    assert (report.records_removed, report.dedup_keys_removed, report.partitions_dropped) == (1, 1, 2)
    assert (realm / "state/sentinel/seen/evt-1").stat().st_size == 0


async def test_an_event_whose_file_stays_missing_is_withdrawn_and_logged(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_bus, "_MISSING_SECONDS", -1.0)
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2))
        first, _ = sorted((realm / "bus/streams/free/pending").iterdir())
        first.unlink()
        assert await drain(bus) == [2]
        assert await types(bus) == ["event.withdrawn"]
        assert await FilesOperations(bus).stats() == []


async def test_an_event_whose_file_stays_damaged_ends_dead_with_the_reason(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_bus, "_DAMAGED_SECONDS", -1.0)
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2))
        first, _ = sorted((realm / "bus/streams/free/pending").iterdir())
        whole = first.read_text()
        first.write_text("{")
        assert await drain(bus) == [2]
        operations = FilesOperations(bus)
        (kept,) = (realm / "bus/streams/free/dead").iterdir()
        kept.write_text(whole)
        (stats,) = await operations.stats()
        assert stats.dead == 1
    async with opened(realm) as bus:
        (position,) = [int(kept.name.partition("-")[0])]
        await FilesOperations(bus).redrive([position], actor="tester")
        assert await drain(bus) == [1]


async def test_damaged_and_foreign_lines_of_the_log_are_skipped(realm: Path) -> None:
    async with opened(realm) as bus:
        await append(bus, "one", "two", "three")
        (first, *_) = await FilesOperations(bus).read_log(LogCursor(), 1)
        path = realm / "logs/events.log"
        os.utime(path, (1, 1))
        await append(bus, "four")
        (kept,) = (realm / "logs").glob("events-*.log")
        one, two, three = kept.read_text().splitlines(keepends=True)
        damaged = two.replace('"actor":"tester",', "")
        assert damaged != two
        kept.write_text(f"# looked at by Ann\n{one}{damaged}what is this?\n{three}")
        assert await types(bus) == ["one", "three", "four"]
        assert await types(bus, first.cursor) == ["three", "four"]
        path.write_text(f"# and by Bob\n{path.read_text()}")
        assert await types(bus) == ["one", "three", "four"]


async def test_files_of_editors_and_file_browsers_in_the_store_stop_nothing(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2))
        await append(bus, "one")
        (realm / "bus/once/.DS_Store").write_text("")
        (realm / "bus/journal/0000000000000001 (copy).jsonl").write_text("")
        (realm / "bus/journal/.segment.jsonl").write_text("")
        (realm / "logs/.#events.log").symlink_to("ann@laptop.1:2")
        (realm / "logs/events-19990101.log").mkdir()
        (realm / "logs/events-notes").write_text("")
        (delivery,) = await bus.claim("free", 1, "worker")
        async with bus.transaction() as transaction:
            await transaction.settle(delivery, Done())
        (realm / "bus/streams/free/done/.DS_Store").write_text("")
        (realm / "bus/streams/free/done/19990101").mkdir()
        report = await FilesOperations(bus).retain(Retention())
        assert (report.partitions_dropped, report.dedup_keys_removed) == (0, 0)
        assert await types(bus) == ["one"]
    async with opened(realm) as bus:
        assert await drain(bus) == [2]
    assert (realm / "logs/events-notes").exists()
    assert (realm / "bus/streams/free/done/.DS_Store").exists()


async def test_a_renamed_kind_takes_over_its_directories(realm: Path) -> None:
    async with opened(realm):
        pass
    async with FilesBus(realm, TOPOLOGY, [replace(JOBS, name="errand")]) as bus:
        assert list(bus.store.kinds) == ["errand"]
    assert json.loads((realm / "bus/kinds.json").read_text()) == {"errand": dict(JOBS.directories)}


async def test_a_damaged_list_of_kinds_is_reported(realm: Path) -> None:
    async with opened(realm):
        pass
    (realm / "bus/kinds.json").write_text("{")
    with pytest.raises(Misconfigured, match=r"cannot read .*bus/kinds\.json.*fix it, or remove it"):
        async with opened(realm):
            pass


async def test_two_retentions_at_once_may_find_the_same_dedup_keys(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    @contextmanager
    def scan_while_another_retention_removes(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        with scan(directory) as found:
            files = list(found)
        for file in files:
            if file.is_file():
                Path(file.path).unlink()
        yield files

    async with opened(realm) as bus:
        async with bus.transaction() as transaction:
            assert await transaction.once("webhook", "delivery", -DAY)
        monkeypatch.setattr(os, "scandir", scan_while_another_retention_removes)
        assert (await FilesOperations(bus).retain(Retention())).dedup_keys_removed == 0
