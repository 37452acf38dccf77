"""Texts of runs on PostgreSQL: appended once, read at a constant cost, and dropped with the partition of their day."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresBus, PostgresOperations, PostgresRunTexts
from kingdom.bus import Retention, Topology
from kingdom.storage.run_texts import TextExtent, TextPiece
from tests.integration.running import eventually, open_bus, rows

DAY = timedelta(days=1)
RUN, NAME = "wf-1", "soldier-1-1"
# A partition for each day of a week, the days ahead, and the default.
FULL_WEEK = Retention(partitions_ahead_days=7)


@pytest.fixture
async def bus(dsn: str) -> AsyncIterator[PostgresBus]:
    async with open_bus(dsn) as bus:
        yield bus


def pieces(text: str, start: int = 0, size: int = 3) -> list[TextPiece]:
    data = text.encode()
    return [TextPiece(start=start + at, content=data[at : at + size]) for at in range(0, len(data), size)]


async def read_all(texts: PostgresRunTexts, name: str = NAME, after: int = 0, limit: int = 1000) -> str:
    return b"".join([piece.content for piece in await texts.read(RUN, name, after, limit)]).decode()


async def test_a_text_is_read_as_it_was_appended_from_any_piece_on(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    assert await texts.append(RUN, NAME, pieces("abcdefgh")) == 8
    assert await texts.append(RUN, NAME, pieces("ijk", 8)) == 11
    assert await read_all(texts) == "abcdefghijk"
    assert await read_all(texts, after=3) == "defghijk"
    assert await read_all(texts, after=4, limit=1) == "def"
    assert await read_all(texts, after=11) == ""
    assert await texts.extents(RUN) == {NAME: TextExtent(start=0, end=11, is_cut=False)}


async def test_a_piece_that_is_written_again_has_no_effect(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    await texts.append(RUN, NAME, pieces("abcdef"))
    assert await texts.append(RUN, NAME, pieces("abcdef")) == 6
    # The file has grown since the answer was lost. The result says where the caller continues.
    assert await texts.append(RUN, NAME, pieces("abcdefghi", size=4)) == 6
    assert await read_all(texts) == "abcdef"
    assert await texts.append(RUN, NAME, pieces("ghi", 6)) == 9
    assert await read_all(texts) == "abcdefghi"


async def test_writers_at_the_same_time_store_a_piece_once(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    ends = await asyncio.gather(*(texts.append(RUN, NAME, pieces("abcdef")) for _ in range(8)))
    assert set(ends) == {6}
    assert await read_all(texts) == "abcdef"


async def test_a_second_writer_waits_for_a_commit_whose_answer_is_lost(bus: PostgresBus, dsn: str) -> None:
    texts = PostgresRunTexts(bus)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(bus.queries["lock_text"], {"lock_class": 0x74657874, "run": RUN, "name": NAME})
        await other.execute(
            "INSERT INTO kingdom.run_text (run, name, start, stop, is_cut, content)"
            " VALUES (%s, %s, 0, 3, false, '\\x789c4b4c4a0600024d0127')",
            (RUN, NAME),
        )
        again = asyncio.create_task(texts.append(RUN, NAME, pieces("abcdef")))

        async def waits() -> bool:
            return bool(await rows(bus, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

        await eventually(waits)
        await other.commit()
        assert await again == 3
    assert [piece.content for piece in await texts.read(RUN, NAME, 0, 10)] == [b"abc"]


async def test_texts_do_not_mix(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    for run, name, text in ((RUN, NAME, "abc"), (RUN, "soldier-2-2", "de"), ("wf-2", NAME, "f")):
        await texts.append(run, name, pieces(text))
    assert await read_all(texts) == "abc"
    assert {name: each.end for name, each in (await texts.extents(RUN)).items()} == {NAME: 3, "soldier-2-2": 2}
    assert await texts.extents("wf-3") == {}


async def test_after_a_cut_nothing_more_is_stored(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    await texts.append(RUN, NAME, [TextPiece(start=0, content=b"abc", is_cut=True)])
    assert await texts.append(RUN, NAME, pieces("def", 3)) == 3
    assert (await texts.extents(RUN))[NAME].is_cut
    assert await read_all(texts) == "abc"


async def test_pieces_are_compressed(bus: PostgresBus) -> None:
    await PostgresRunTexts(bus).append(RUN, NAME, [TextPiece(start=0, content=b"the same " * 7000)])
    (row,) = await rows(bus, "SELECT length(content) AS size FROM kingdom.run_text")
    assert row["size"] < 1000


async def make_day(bus: PostgresBus, age: int) -> str:
    """Create the partition of a past day, and return its name."""
    day = datetime.now(UTC).date() - age * DAY
    async with bus.pool.connection() as connection:
        await connection.execute(
            f"CREATE TABLE kingdom.run_text_{day:%Y%m%d} PARTITION OF kingdom.run_text"
            f" FOR VALUES FROM ('{day}') TO ('{day + DAY}')"
        )
    return f"run_text_{day:%Y%m%d}"


async def fill(bus: PostgresBus, first: int, count: int, *, age: int = 0) -> None:
    """Insert pieces of ten bytes into the texts of two runs, as if they had been written some days ago."""
    await rows(
        bus,
        "INSERT INTO kingdom.run_text (run, name, start, stop, is_cut, content, written_at)"
        " SELECT run, 'soldier-1-1', g * 10, g * 10 + 10, false,"
        " '\\x789c3330343236313533b7b004000aff020e', now() - %s"
        " FROM generate_series(%s::bigint, %s) g, (VALUES ('wf-1'), ('wf-2')) runs (run)",
        age * DAY,
        first,
        count - 1,
    )


async def test_old_pieces_are_dropped_with_their_partition_and_no_row_is_deleted(dsn: str) -> None:
    async with ExplainedBus(dsn, Topology(()), connections=1) as bus:
        texts, operations = PostgresRunTexts(bus), PostgresOperations(bus)
        await operations.retain(Retention())
        old, kept = await make_day(bus, 9), await make_day(bus, 3)
        await fill(bus, 0, 300, age=9)
        await texts.append(RUN, "soldier-2-2", pieces("recent"))
        bus.take()
        report = await operations.retain(Retention(run_texts=7 * DAY))
        assert report.partitions_dropped == 1
        # Every statement that reads or writes rows has a plan. Only a Delete on these tables could remove a row.
        deleted = {
            node.get("Relation Name")
            for plan in bus.take()
            for node in plan.nodes()
            if node["Node Type"] == "ModifyTable" and node["Operation"] == "Delete"
        }
        assert not any(str(table).startswith("run_text") for table in deleted)
        tables = [row["name"] for row in await rows(bus, _PARTITIONS)]
        assert old not in tables
        assert kept in tables
        assert list(await texts.extents(RUN)) == ["soldier-2-2"]


_PARTITIONS = (
    "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'kingdom.run_text'::regclass"
)


async def test_a_text_whose_first_pieces_are_gone_begins_later(bus: PostgresBus) -> None:
    texts = PostgresRunTexts(bus)
    await make_day(bus, 9)
    await fill(bus, 0, 5, age=9)
    assert await texts.append(RUN, NAME, pieces("abc", 50)) == 53
    await PostgresOperations(bus).retain(FULL_WEEK)
    assert await texts.extents(RUN) == {NAME: TextExtent(start=50, end=53, is_cut=False)}


@pytest.mark.parametrize("size", [2000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_writing_and_reading_cost_the_same_however_many_pieces_there_are(dsn: str, size: int) -> None:
    """For each size, fill one run and other runs with as many pieces, and count the buffers of each statement."""
    costs: list[dict[str, int]] = []
    async with ExplainedBus(dsn, Topology(()), connections=1) as bus:
        texts = PostgresRunTexts(bus)
        await PostgresOperations(bus).retain(FULL_WEEK)
        stored = 0
        for count in (200, size):
            await fill(bus, stored, count)
            stored = count + 1
            await rows(bus, "VACUUM ANALYZE kingdom.run_text")
            bus.take()
            end = await texts.append(RUN, NAME, [TextPiece(start=count * 10, content=b"x" * 10)])
            assert end == count * 10 + 10
            assert len(await texts.read(RUN, NAME, end // 2, 50)) == 50
            assert (await texts.extents(RUN))[NAME].end == end
            costs.append(plans_of(bus))
    few, many = costs
    assert few.keys() == {"lock_text", "append_text", "read_text", "text_extents"} == many.keys()
    for name, buffers in many.items():
        # Each index lookup of a statement may read at most two more levels.
        assert buffers <= few[name] + 12, (name, few, many)


def plans_of(bus: ExplainedBus) -> dict[str, int]:
    found = [plan for plan in bus.take() if plan.name]
    assert len(found) == 4, [plan.name for plan in found]
    for plan in found:
        assert not any(table.startswith("run_text") for table in plan.read_whole), (plan.name, plan.read_whole)
    return {plan.name: plan.buffers for plan in found}
