"""Reading the log by cursor misses and repeats nothing, whatever the order of commits."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from kingdom.bus import Bus, LogCursor, LogEntry, LoggedEntry, Operations, Record
from tests.contract.scene import Scene, eventually


def entry(name: str) -> LogEntry:
    return LogEntry(type=name, actor="tester", data={"name": name}, aggregate_type="Test", aggregate_id=name)


async def append(bus: Bus, *names: str) -> None:
    async with bus.transaction() as transaction:
        await transaction.append(*map(entry, names))


class Reader:
    """Follows the log by cursor, page by page, as the live view does."""

    def __init__(self, operations: Operations, page: int = 3) -> None:
        self.cursor = LogCursor()
        self.seen: list[str] = []
        self._operations = operations
        self._page = page

    async def read(self) -> list[str]:
        while found := await self._operations.read_log(self.cursor, self._page):
            self.seen += [logged.entry.type for logged in found]
            self.cursor = found[-1].cursor
        return self.seen

    async def until(self, names: set[str]) -> None:
        async def all_there() -> bool:
            return names <= set(await self.read())

        await eventually(all_there, f"{names} can be read")


async def test_entries_are_read_as_they_were_written(scene: Scene) -> None:
    written = entry("one")
    async with scene.bus.transaction() as transaction:
        await transaction.append(written, entry("two"))
        await transaction.append(entry("three"))
    read = await scene.read_log()
    assert [logged.entry.type for logged in read] == ["one", "two", "three"]
    assert read[0].entry == written


async def test_a_reader_continues_from_its_cursor(scene: Scene) -> None:
    await append(scene.bus, "one", "two")
    read = await scene.read_log()
    rest = await scene.operations.read_log(read[0].cursor, 10)
    assert rest[0].entry.type == "two"
    assert (await scene.operations.read_log(LogCursor(), 1))[0] == read[0]
    assert LogCursor.parse(str(read[0].cursor)) == read[0].cursor


async def test_a_reader_can_request_the_entries_about_one_subject(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        for name, order in (("one", "a"), ("two", "b"), ("three", "a"), ("four", "")):
            await transaction.append(LogEntry(type=name, actor="test", data={"mentions": "a"}, aggregate_id=order))
    assert len(await scene.read_log()) == 4
    first, second = await scene.operations.read_log(LogCursor(), 10, "a")
    assert [first.entry.type, second.entry.type] == ["one", "three"]
    assert await scene.operations.read_log(first.cursor, 10, "a") == [second]
    assert await scene.operations.read_log(LogCursor(), 1, "a") == [first]


async def test_cursors_grow(scene: Scene) -> None:
    for name in "abc":
        await append(scene.bus, name, name)
    cursors = [logged.cursor for logged in await scene.read_log()]
    assert cursors == sorted(set(cursors))


async def test_a_rolled_back_entry_is_never_read(scene: Scene) -> None:
    with suppress(ZeroDivisionError):
        async with scene.bus.transaction() as transaction:
            await transaction.append(entry("never"))
            await transaction.get("job", "1")
            raise ZeroDivisionError
    await append(scene.bus, "kept")
    assert await scene.log_types() == ["kept"]


async def test_the_end_of_the_log_is_after_its_newest_entry(scene: Scene) -> None:
    assert await scene.operations.log_end() == LogCursor()
    await append(scene.bus, "one")
    read = await scene.read_log()
    end = await scene.operations.log_end()
    assert end > read[-1].cursor
    assert await scene.operations.read_log(end, 10) == []


@pytest.mark.parametrize("commit_order", [("first", "second"), ("second", "first")])
async def test_a_reader_misses_nothing_when_transactions_commit_out_of_order(
    scene: Scene, commit_order: tuple[str, str]
) -> None:
    reader = Reader(scene.operations)
    async with scene.backend.caller(scene.bus) as first, scene.backend.caller(scene.bus) as second:
        callers = {"first": first, "second": second}
        for name, caller in callers.items():
            async with caller.join() as transaction:
                await transaction.append(entry(name))
        for name in commit_order:
            await callers[name].commit()
            await append(scene.bus, f"after {name}")
            # Read everything readable now. A late entry below the cursor would be missed.
            await reader.read()
    await reader.until({"first", "second", "after first", "after second"})
    assert len(reader.seen) == 4


async def test_a_reader_misses_nothing_of_a_writer_that_is_open_for_long(scene: Scene) -> None:
    reader = Reader(scene.operations)
    async with scene.backend.caller(scene.bus) as slow:
        async with slow.join() as transaction:
            await transaction.append(entry("slow 1"))
        for number in range(5):
            await append(scene.bus, f"quick {number}")
            await reader.read()
        async with slow.join() as transaction:
            await transaction.append(entry("slow 2"))
        assert "slow 1" not in reader.seen
        await slow.commit()
    await reader.until({"slow 1", "slow 2", "quick 4"})
    assert len(reader.seen) == len(set(reader.seen)) == 7
    assert reader.seen.index("slow 1") < reader.seen.index("slow 2")


async def test_readers_see_every_entry_of_many_writers_once_and_in_the_same_order(scene: Scene) -> None:
    names = [[f"{writer}.{number}" for number in range(15)] for writer in range(6)]
    readers = [Reader(scene.operations, page) for page in (1, 4, 100)]
    writing = True

    async def write(writer: int) -> None:
        async with scene.backend.caller(scene.bus) as caller:
            for name in names[writer]:
                async with caller.join() as transaction:
                    await transaction.append(entry(name))
                await asyncio.sleep(0)
                # Every third transaction is rolled back, which leaves gaps in every sequence.
                await (caller.rollback() if name.endswith(("3", "6", "9")) else caller.commit())

    async def follow(reader: Reader) -> None:
        while writing:
            await reader.read()
            await asyncio.sleep(0)

    following = [asyncio.create_task(follow(reader)) for reader in readers]
    try:
        await asyncio.gather(*map(write, range(6)))
    finally:
        # On a backend without callers, `write` skips the test. The readers must end then too.
        writing = False
        await asyncio.gather(*following)
    kept = {name for group in names for name in group if not name.endswith(("3", "6", "9"))}
    for reader in readers:
        await reader.until(kept)
        assert sorted(reader.seen) == sorted(kept)
        assert reader.seen == readers[0].seen
    whole: list[LoggedEntry] = await scene.read_log()
    assert [logged.entry.type for logged in whole] == readers[0].seen


async def test_an_entry_comes_after_the_entries_that_its_transaction_could_read(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as late, scene.backend.caller(scene.bus) as unrelated:
        # A transaction gets its number with its first write, here before the cause exists.
        async with late.join() as transaction:
            await transaction.put(Record(kind="job", id="early", state="open"))
        async with unrelated.join() as transaction:
            await transaction.put(Record(kind="job", id="unrelated", state="open"))
        await append(scene.bus, "cause")
        async with late.join() as transaction:
            await transaction.append(entry("effect"))
        await late.commit()
        # An older transaction that stays open delays neither.
        assert await scene.log_types() == ["cause", "effect"]
        await unrelated.rollback()


async def test_the_log_is_kept_after_its_own_cursors_and_not_after_those_of_another_store(scene: Scene) -> None:
    await append(scene.bus, "one", "two")
    read, end = await scene.read_log(), await scene.operations.log_end()
    for cursor in (LogCursor(), read[0].cursor, read[1].cursor, end):
        assert await scene.operations.keeps_log_after(cursor)
    assert not await scene.operations.keeps_log_after(LogCursor(end.epoch + 1_000_000, end.sequence + 1_000_000))


async def test_the_age_of_an_open_writing_transaction_is_the_lag_of_the_log(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as writer:
        assert await scene.operations.log_lag() == timedelta()
        async with writer.join() as transaction:
            await transaction.append(entry("open"))
        assert await scene.operations.log_lag() > timedelta()
        await writer.rollback()
