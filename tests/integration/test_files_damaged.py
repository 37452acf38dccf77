"""Files of a store that a person or a disk has damaged: each stops only what depends on it."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files import bus as bus_module
from kingdom.bus import Done, Stream, Topology
from kingdom.bus.operations import DeadFilter
from kingdom.errors import Misconfigured
from tests.integration.test_files_extremes import numbers, opened, ping, step

End = Callable[[FilesBus, Path, pytest.MonkeyPatch], Awaitable[None]]


async def give_up(bus: FilesBus, _: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_DAMAGED_SECONDS", -1.0)
    assert await numbers(bus, "line") == []


async def remove(bus: FilesBus, damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_MISSING_SECONDS", -1.0)
    damaged.unlink()
    assert await numbers(bus, "line") == []


async def cancel(bus: FilesBus, damaged: Path, _: pytest.MonkeyPatch) -> None:
    event_id = UUID(damaged.stem.partition("-")[2])
    assert await FilesOperations(bus).cancel(event_id, "line", actor="tester") == "cancelled"


@pytest.mark.parametrize("end", [give_up, remove, cancel])
async def test_events_behind_a_damaged_event_are_claimed_by_the_same_process_when_it_ends(
    realm: Path, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    monkeypatch.setattr(bus_module, "_READ_AGAIN_SECONDS", 0.0)
    async with opened(realm) as bus:
        await bus.publish(step(0, "a"), step(1, "b"), step(2, "b"))
    damaged = min((realm / "bus/streams/line/pending").iterdir())
    damaged.write_text("{")
    async with opened(realm) as bus:
        # The key of the damaged event is not known, so all later events wait.
        assert await numbers(bus, "line") == []
        await end(bus, damaged, monkeypatch)
        assert await numbers(bus, "line") == [1, 2]


async def test_another_process_may_handle_an_event_whose_file_was_damaged_when_this_process_started(
    realm: Path,
) -> None:
    async with opened(realm) as bus:
        await bus.publish(step(0, "a"), step(1, "b"), step(2, "a"))
    damaged = min((realm / "bus/streams/line/pending").iterdir())
    whole = damaged.read_text()
    damaged.write_text("{")
    async with opened(realm) as bus:
        assert await numbers(bus, "line") == []
        damaged.write_text(whole)
        async with opened(realm) as other:
            (first,) = await other.claim("line", 1, "other")
            assert await numbers(bus, "line") == [1]
            async with other.transaction() as transaction:
                await transaction.settle(first, Done())
        assert await numbers(bus, "line") == [2]


@pytest.mark.parametrize("knows_key", [False, True])
async def test_a_damaged_event_ends_although_several_processes_try_to_read_it(
    realm: Path, monkeypatch: pytest.MonkeyPatch, *, knows_key: bool
) -> None:
    monkeypatch.setattr(bus_module, "_READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(bus_module, "_DAMAGED_SECONDS", 0.0)
    async with opened(realm) as first, opened(realm) as second:
        await first.publish(step(0, "a"), step(1, "b"))
        if knows_key:
            # The first process loads the stream before the damage.
            await FilesOperations(first).stats()
        min((realm / "bus/streams/line/pending").iterdir()).write_text("{")
        claimed = [number for bus in (first, second, first, second, first) for number in await numbers(bus, "line")]
        assert claimed == [1]
        assert [letter.error_code for letter in await FilesOperations(second).dead_letters(DeadFilter(), 9)] == [
            "damaged"
        ]


@pytest.mark.parametrize(("on_dead", "claimed"), [("skip", [1]), ("block", [])])
async def test_an_event_that_ends_because_its_file_is_damaged_blocks_its_key_only_if_the_stream_says_so(
    realm: Path, monkeypatch: pytest.MonkeyPatch, on_dead: Literal["block", "skip"], claimed: list[int]
) -> None:
    monkeypatch.setattr(bus_module, "_DAMAGED_SECONDS", -1.0)
    line = Stream(name="line", subscribes=frozenset({"Step"}), ordered=True, on_dead=on_dead)
    async with FilesBus(realm, Topology([line])) as bus:
        await bus.publish(step(0), step(1))
        min((realm / "bus/streams/line/pending").iterdir()).write_text("{")
        assert await numbers(bus, "line") == []
        assert await numbers(bus, "line") == claimed


async def test_a_byte_that_is_no_text_in_a_key_a_lease_a_pause_or_an_archive_stops_nothing(realm: Path) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1), ping(2), ping(3))
        done, lost, _ = await bus.claim("free", 3, "worker")
        async with bus.transaction() as transaction:
            await transaction.settle(done, Done())
            await transaction.once("webhook", "delivery", timedelta(days=1))
        operations = FilesOperations(bus)
        await operations.pause("free", reason="a test", actor="tester")
        for file, text in (("once/webhook/*", "delivery"), ("leases/*", "worker"), ("paused/*", "a test")):
            put_no_text(realm, file, text)
        put_no_text(realm, "streams/free/done/*", "Ping")
        assert (await operations.situations(done.envelope.event_id)) == []
        assert (await operations.situations(lost.envelope.event_id))[0].status == "PROCESSING"
        assert await bus.reap() == 2
        async with bus.transaction() as transaction:
            assert not await transaction.once("webhook", "delivery", timedelta(days=1))
    async with opened(realm) as bus:
        # A pause that cannot be read pauses nothing.
        assert await numbers(bus, "free") == [2]


async def test_a_list_of_kinds_with_a_byte_that_is_no_text_is_reported(realm: Path) -> None:
    async with opened(realm):
        pass
    put_no_text(realm, "kinds.json", "job")
    with pytest.raises(Misconfigured, match=r"cannot read .*bus/kinds\.json.*fix it, or remove it"):
        async with opened(realm):
            pass


def put_no_text(realm: Path, file: str, text: str) -> None:
    """Put a byte that is not UTF-8 in front of a text in a file of the bus."""
    (path,) = (path for path in (realm / "bus").glob(file) if path.is_file())
    whole = path.read_bytes()
    assert text.encode() in whole
    path.write_bytes(whole.replace(text.encode(), b"\xff" + text.encode()))
