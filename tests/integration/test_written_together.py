"""Several records written by one statement: the order of their locks, and their end times."""

import asyncio

import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Record, RecordKind, Topology
from kingdom.clock import utc_now
from kingdom.errors import Conflict
from tests.integration.running import HOUR, MARKS, eventually, open_bus, rows, stream

COUNT = 20
_LOCK_THE_MIDDLE = "SELECT 1 FROM kingdom.record WHERE kind = 'mark' AND id = 'm10' FOR UPDATE"
_CREATE_THE_MIDDLE = (
    "INSERT INTO kingdom.record (kind, id, version, state, doc) VALUES ('mark', 'm10', 1, 'made', '{}')"
)
_CONTENTS = """SELECT kind, id, version, state, owner, index_2, index_3, due_at, doc, ended_at IS NOT NULL AS ended
                 FROM kingdom.record ORDER BY id"""
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_transactions_that_put_the_same_records_in_opposite_orders_do_not_deadlock(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await _put(bus, range(COUNT), version=0)
        async with await psycopg.AsyncConnection.connect(dsn) as blocker:
            await blocker.execute(_LOCK_THE_MIDDLE)
            writers = [
                asyncio.create_task(_put(bus, numbers, version=1)) for numbers in (range(COUNT), range(COUNT)[::-1])
            ]
            await eventually(lambda: _both_wait(bus))
            await blocker.commit()
        first, second = await asyncio.gather(*writers, return_exceptions=True)
        assert await rows(bus, "SELECT DISTINCT version FROM kingdom.record") == [{"version": 2}]
    (conflict,) = filter(None, (first, second))
    assert isinstance(conflict, Conflict)
    assert "is no longer at version 1" in str(conflict)


async def test_transactions_that_create_the_same_records_in_opposite_orders_do_not_deadlock(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        async with await psycopg.AsyncConnection.connect(dsn) as blocker:
            await blocker.execute(_CREATE_THE_MIDDLE)
            writers = [
                asyncio.create_task(_put(bus, numbers, version=0)) for numbers in (range(COUNT), range(COUNT)[::-1])
            ]
            await eventually(lambda: _both_wait(bus))
            await blocker.rollback()
        first, second = await asyncio.gather(*writers, return_exceptions=True)
        assert await rows(bus, "SELECT count(*), max(version) AS version FROM kingdom.record") == [
            {"count": COUNT, "version": 1}
        ]
    (conflict,) = filter(None, (first, second))
    assert isinstance(conflict, Conflict)


async def test_new_records_are_stored_by_one_statement_and_none_of_them_if_one_exists(dsn: str) -> None:
    async with ExplainedBus(dsn, Topology([stream("jobs", "Job")]), [MARKS]) as bus:
        await _put(bus, range(3), version=0)
        assert [plan.name for plan in bus.take()] == ["insert_records"]
        with pytest.raises(Conflict, match="mark m02 is no longer at version 0"):
            await _put(bus, range(2, 5), version=0)
        assert await rows(bus, "SELECT id FROM kingdom.record ORDER BY id") == [{"id": f"m{n:02}"} for n in range(3)]


async def test_a_record_is_stored_the_same_way_alone_and_among_many(dsn: str) -> None:
    kind = RecordKind(name="mark", directories=MARKS.directories, final=frozenset({"made"}), indexes=("a", "b", "c"))
    bare = Record(kind="mark", id="bare", state="open")
    full = bare.replace(id="full", state="made", indexed={"a": "1", "c": "3"}, due_at=utc_now(), doc={"ü": [1, None]})
    async with PostgresBus(dsn, Topology([stream("jobs", "Job")]), [kind]) as bus:
        stored = []
        for together in ([[bare], [full]], [[bare, full]]):
            for records in together:
                async with bus.transaction() as transaction:
                    for record in records:
                        await transaction.put(record)
            stored.append(await rows(bus, _CONTENTS))
            await rows(bus, "TRUNCATE kingdom.record")
        assert stored[0] == stored[1]
        assert [row["ended"] for row in stored[0]] == [False, True]


async def test_each_of_several_final_records_keeps_its_first_end_until_it_is_opened_again(dsn: str) -> None:
    kind = RecordKind(name="mark", directories=MARKS.directories, final=frozenset({"made"}), retention=HOUR)
    async with PostgresBus(dsn, Topology([stream("jobs", "Job")]), [kind]) as bus:
        await _put(bus, range(2), version=0)
        first = await rows(bus, "SELECT id, ended_at FROM kingdom.record WHERE ended_at IS NOT NULL ORDER BY id")
        assert len(first) == 2
        await _put(bus, range(2), version=1)
        assert await rows(bus, "SELECT id, ended_at FROM kingdom.record ORDER BY id") == first
        await _put(bus, range(2), version=2, state="open")
        assert await rows(bus, "SELECT 1 FROM kingdom.record WHERE ended_at IS NOT NULL") == []


async def _put(bus: PostgresBus, numbers: range, *, version: int, state: str = "made") -> None:
    async with bus.transaction() as transaction:
        for number in numbers:
            await transaction.put(Record(kind="mark", id=f"m{number:02}", state=state, version=version))


async def _both_wait(bus: PostgresBus) -> bool:
    return len(await rows(bus, _WAITING)) == 2
