"""An event that is published twice under one id is delivered once while the archive keeps it, at a constant cost."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import msgspec
import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files.journal.entry import EventRow
from kingdom.backends.files.system.disk import Disk
from kingdom.backends.files.tree.archive_ids import add_archived_ids, contains_id
from kingdom.backends.files.tree.file_formats import encode_archive_line
from kingdom.backends.files.tree.layout import archive_index_file
from kingdom.bus import Dead, Done, Envelope, EventType, Stream, Topology
from kingdom.bus.operations import Retention
from kingdom.bus.outcome import AnyOutcome

TOPOLOGY = Topology(
    [
        Stream(name="free", subscribes=frozenset({"Ping", "Both"})),
        Stream(name="line", subscribes=frozenset({"Step", "Both"}), ordered=True),
    ]
)


def given(kind: str = "Ping", event_id: UUID | None = None) -> Envelope:
    return Envelope(type=kind, event_id=event_id or uuid4(), partition_key="k")


def opened(realm: Path) -> FilesBus:
    return FilesBus(realm, TOPOLOGY)


async def handle(bus: FilesBus, stream: str = "free", outcome: AnyOutcome | None = None) -> list[UUID]:
    claimed = await bus.claim(stream, 100, "worker")
    async with bus.transaction(claimed) as transaction:
        for delivery in claimed:
            await transaction.settle(delivery, outcome or Done())
    return [delivery.envelope.event_id for delivery in claimed]


@pytest.mark.parametrize(("kind", "stream"), [("Ping", "free"), ("Step", "line")])
async def test_an_id_that_was_handled_is_a_duplicate_for_every_process(realm: Path, kind: str, stream: str) -> None:
    event = given(kind)
    async with opened(realm) as bus, opened(realm) as another:
        await bus.publish(event)
        assert await handle(bus, stream) == [event.event_id]
        async with opened(realm) as new:
            for each in (bus, another, new):
                (copy,) = await each.publish(event)
                assert (copy.stream.name, copy.envelope) == (stream, event)
                assert await handle(each, stream) == []
        follower = given(kind)
        assert [c.envelope for c in await another.publish(given(kind), event, follower)] == [event]
        assert len(await handle(bus, stream)) == 2


async def test_an_id_is_a_duplicate_only_in_the_streams_that_handled_it(realm: Path) -> None:
    event = given("Both")
    async with opened(realm) as bus:
        await bus.publish(only_for(event, "free"))
        await handle(bus)
        duplicates = await bus.publish(event)
        assert [copy.stream.name for copy in duplicates] == ["free"]
        assert await handle(bus, "line") == [event.event_id]
        assert len(await bus.publish(event)) == 2


def only_for(event: Envelope, stream: str) -> Envelope:
    return Envelope(type=event.type, event_id=event.event_id, partition_key="k", stream=stream)


async def test_the_id_of_a_discarded_event_is_a_duplicate_too(realm: Path) -> None:
    event = given()
    async with opened(realm) as bus:
        await bus.publish(event)
        (delivery,) = await bus.claim("free", 1, "worker")
        async with bus.transaction([delivery]) as transaction:
            await transaction.settle(delivery, Dead("broken"))
        await FilesOperations(bus).discard([delivery.position], reason="no use", actor="tester")
        assert len(await bus.publish(event)) == 1


async def test_an_event_type_marks_which_event_ids_the_caller_chose(realm: Path) -> None:
    kind = EventType(name="Ping", payload=dict)
    event_id = uuid4()
    async with opened(realm) as bus:
        await bus.publish(kind.envelope({}, event_id=event_id))
        assert await handle(bus) == [event_id]
        assert len(await bus.publish(kind.envelope({}, event_id=event_id))) == 1
    assert not kind.envelope({}).event_id_given


async def test_publishing_the_same_id_while_the_first_event_is_settled_delivers_once(realm: Path) -> None:
    async with opened(realm) as bus, opened(realm) as another:
        for _ in range(20):
            event = given()
            await bus.publish(event)
            handled, duplicates = await asyncio.gather(handle(bus), another.publish(event))
            assert (handled, len(duplicates)) == ([event.event_id], 1)
        event = given()
        await bus.publish(event)
        (delivery,) = await bus.claim("free", 1, "worker")
        async with bus.transaction([delivery]) as transaction:
            await transaction.publish(event)
            await transaction.settle(delivery, Done())
        assert len(transaction.duplicates) == 1
        assert await handle(bus) == []


async def test_an_ended_event_can_be_published_again_when_its_archive_is_removed(realm: Path) -> None:
    event = given()
    async with opened(realm) as bus:
        await bus.publish(event)
        await handle(bus)
        (lines,) = (realm / "bus/streams/free/done").glob("*.jsonl")
        index = Path(archive_index_file(str(lines)))
        lines.rename(lines.with_stem("20200101"))
        index.rename(index.with_stem("20200101"))
        assert len(await bus.publish(event)) == 1
        await FilesOperations(bus).retain(Retention(archive=timedelta(days=1)))
        assert (list(lines.parent.iterdir()), list(index.parent.iterdir())) == ([], [])
        assert await bus.publish(event) == ()
        assert await handle(bus) == [event.event_id]


@pytest.mark.parametrize("index", [None, b"", b"\x00" * 100, b"\x00" * 3 * 4096], ids=["none", "empty", "torn", "odd"])
async def test_a_missing_or_damaged_index_of_an_archive_is_rebuilt(realm: Path, index: bytes | None) -> None:
    events = [given() for _ in range(3)]
    async with opened(realm) as bus:
        await bus.publish(*events)
        await handle(bus)
        (path,) = (realm / "bus/streams/free/done-ids").iterdir()
        path.unlink() if index is None else path.write_bytes(index)
        # An event that ends after the damage must not hide the others.
        await bus.publish(given())
        await handle(bus)
        assert len(await bus.publish(*events)) == 3


async def test_after_a_loss_of_power_the_index_is_rebuilt_from_the_lines(realm: Path, tmp_path: Path) -> None:
    events = [given() for _ in range(3)]
    async with opened(realm) as bus:
        await bus.publish(*events)
        await handle(bus)
        # The journal no longer contains these events, but it contains the next one.
        bus.store.checkpoint()
        events.append(given())
        await bus.publish(events[-1])
        await handle(bus)
        (path,) = (realm / "bus/streams/free/done-ids").iterdir()
        # The power was lost before the page was written.
        path.write_bytes(bytes(path.stat().st_size))
        shutil.copytree(realm, tmp_path / "dark")
    dark = opened(tmp_path / "dark")
    dark.store.boot = "another"
    async with dark:
        assert len(await dark.publish(*events)) == 4


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """Record every call that reads or checks a file."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        plain = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return plain(*arguments, **named)

        return patch.object(os, name, call)

    with counted("open"), counted("pread"), counted("read"), counted("stat"), counted("scandir"), counted("listdir"):
        yield calls


def archive(lines: Path, count: int) -> list[str]:
    """Write an archive with this many events and its index, as settlements do."""
    event_ids = [str(uuid4()) for _ in range(count)]
    lines.parent.mkdir(parents=True, exist_ok=True)
    disk = Disk()
    for start in range(0, count, 10_000):
        batch = event_ids[start : start + 10_000]
        rows = [
            EventRow("free", start + n, each, None, "PENDING", None, 0.0, 1, event_id_given=True)
            for n, each in enumerate(batch)
        ]
        bodies = [msgspec.Raw(msgspec.json.encode({"eventId": row.event_id})) for row in rows]
        ended = [bytes(encode_archive_line(1, row, "DONE", body)) for row, body in zip(rows, bodies, strict=True)]
        disk.append(str(lines), b"".join(line + b"\n" for line in ended))
        add_archived_ids(str(lines), batch, disk)
    return event_ids


@pytest.mark.parametrize("large", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
async def test_the_reads_of_a_check_do_not_grow_with_the_archive(realm: Path, large: int) -> None:
    counts = {}
    for count in (10, large):
        event_ids = archive(realm / f"{count}/bus/streams/free/done/20260101.jsonl", count)
        async with opened(realm / str(count)) as bus:
            await bus.publish(given())
            for name, event in (("new", given()), ("known", given(event_id=UUID(event_ids[count // 2])))):
                with counted_reads() as calls:
                    duplicates = await bus.publish(event)
                assert len(duplicates) == (name == "known")
                counts[count, name] = sorted(calls)
    assert counts[10, "new"] == counts[large, "new"]
    assert counts[10, "known"] == counts[large, "known"]


async def test_a_generated_id_costs_no_lookup(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(given())
        await handle(bus)
        with counted_reads() as own:
            await bus.publish(Envelope(type="Ping"))
        with counted_reads() as theirs:
            await bus.publish(given())
        assert {"pread", "scandir"} & set(theirs)
        assert not {"pread", "scandir"} & set(own)


def test_a_growing_index_contains_every_added_id_and_no_other(tmp_path: Path) -> None:
    lines = tmp_path / "20260101.jsonl"
    event_ids = archive(lines, 2_000)
    disk = Disk()
    more = [str(uuid4()) for _ in range(2_000)]
    add_archived_ids(str(lines), more, disk)
    for event_id in (*event_ids, *more):
        assert contains_id(str(lines), event_id, disk)
    assert not any(contains_id(str(lines), str(uuid4()), disk) for _ in range(1_000))
