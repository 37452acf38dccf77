"""Several records in one transaction, also with events and log entries: all are written, or none."""

from contextlib import suppress

import pytest

from kingdom.bus import LogEntry, Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.errors import Conflict
from tests.contract.scene import HOUR, Make, Scene, ids, ping, step


def job(number: int, **fields: object) -> Record:
    return Record(**{"kind": "job", "id": f"j{number}", "state": "open", **fields})  # type: ignore[arg-type]


async def put(scene: Scene, *records: Record) -> None:
    async with scene.bus.transaction() as transaction:
        for record in records:
            await transaction.put(record)


async def test_either_all_of_many_records_are_stored_or_none(scene: Scene) -> None:
    await put(scene, job(1), job(2), job(3))
    fresh = [job(1, version=1, doc={"n": 1}), job(2, version=1, doc={"n": 2}), job(4), job(5)]
    for late in (job(3, version=7), job(3)):
        with suppress(Conflict):
            await put(scene, *fresh, late)
            pytest.fail("a record at another version was overwritten")
    async with scene.bus.transaction() as transaction:
        assert [record.version for record in await transaction.find(RecordQuery(kind="job"))] == [1, 1, 1]
    await put(scene, *fresh, job(3, version=1, state="closed"))
    async with scene.bus.transaction() as transaction:
        found = {
            record.id: (record.version, record.state, dict(record.doc))
            for record in await transaction.find(RecordQuery(kind="job"))
        }
    assert found == {
        "j1": (2, "open", {"n": 1}),
        "j2": (2, "open", {"n": 2}),
        "j3": (2, "closed", {}),
        "j4": (1, "open", {}),
        "j5": (1, "open", {}),
    }


@pytest.mark.parametrize("others", [0, 1, 3])
async def test_a_record_that_does_not_exist_cannot_be_put_at_a_later_version(scene: Scene, others: int) -> None:
    with pytest.raises(Conflict):
        await put(scene, job(1, version=4), *(job(2 + number) for number in range(others)))
    async with scene.bus.transaction() as transaction:
        assert await transaction.find(RecordQuery(kind="job")) == []


@pytest.mark.parametrize("make", [ping, step])
async def test_records_and_entries_with_a_duplicate_event_are_kept_once(scene: Scene, make: Make) -> None:
    known, fresh = make(), make()
    await scene.bus.publish(known)
    async with scene.bus.transaction() as transaction:
        await transaction.put(job(1))
        await transaction.put(job(2))
        await transaction.publish(known, fresh)
        await transaction.append(LogEntry(type="seen", actor="tester"))
    assert [copy.envelope.event_id for copy in transaction.duplicates] == [known.event_id]
    async with scene.bus.transaction() as transaction:
        assert [record.version for record in await transaction.find(RecordQuery(kind="job"))] == [1, 1]
    assert await scene.log_types() == ["seen"]
    stream = "line" if make is step else "free"
    assert sorted(ids(await scene.drain(stream))) == sorted(ids([known, fresh]))


async def test_nothing_written_in_a_conflicting_transaction_is_kept(scene: Scene) -> None:
    await put(scene, job(1))
    before = scene.picture
    with suppress(Conflict):
        async with scene.bus.transaction() as transaction:
            await transaction.put(job(2))
            await transaction.put(job(1, version=2))
            await transaction.publish(step())
            await transaction.append(LogEntry(type="seen", actor="tester"))
        pytest.fail("a record at another version was overwritten")
    assert scene.picture == before
    assert await scene.log_types() == []


async def test_a_record_that_was_read_ahead_changes_only_by_puts_of_the_same_transaction(scene: Scene) -> None:
    await put(scene, job(1), job(2))
    keys = [("job", "j1"), ("job", "j2"), ("job", "j3")]
    with suppress(Conflict):
        async with scene.bus.transaction() as transaction:
            await transaction.read_ahead(keys)
            await put(scene, job(2, version=1, doc={"by": "another"}))
            assert await transaction.get("job", "j1") == job(1, version=1)
            assert await transaction.get("job", "j2") == job(2, version=1)
            assert await transaction.get("job", "j3") is None
            await transaction.put(job(1, version=1, doc={"by": "us"}))
            seen = await transaction.get("job", "j1")
            assert seen is not None
            assert seen.doc == {"by": "us"}
            await transaction.put(job(2, version=1, doc={"by": "us"}))
        pytest.fail("what another wrote since was overwritten")
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "j1") == job(1, version=1)


async def test_queries_that_were_run_ahead_find_the_same_as_single_queries(scene: Scene) -> None:
    due = utc_now() - HOUR
    await put(scene, *(job(n, state="closed" if n % 3 else "open", due_at=due if n % 2 else None) for n in range(1, 9)))
    await put(scene, Record(kind="tally", id="j1", state="counting"))
    queries = [
        RecordQuery(kind="job"),
        RecordQuery(kind="job", limit=3, after="j2"),
        RecordQuery(kind="job", limit=3, after="j7", descending=True),
        RecordQuery(kind="job", state="closed", limit=2),
        RecordQuery(kind="job", state="closed", descending=True),
        RecordQuery(kind="job", state="open", due_by=utc_now(), limit=1),
        RecordQuery(kind="job", due_by=utc_now()),
        RecordQuery(kind="job", index="owner", value="nobody"),
        RecordQuery(kind="tally"),
        RecordQuery(kind="tally", after="j1"),
    ]
    async with scene.bus.transaction() as transaction:
        expected = [await transaction.find(query) for query in queries]
    assert [len(found) for found in expected[:5]] == [8, 3, 3, 2, 6]
    async with scene.bus.transaction() as transaction:
        await transaction.find_ahead(queries)
        assert [await transaction.find(query) for query in queries] == expected
        # A later put in the same transaction is found, too.
        await transaction.put(job(9, state="closed"))
        assert next(record.id for record in await transaction.find(queries[4])) == "j9"


async def test_a_result_that_was_read_ahead_does_not_show_a_record_as_it_was_before_a_put(scene: Scene) -> None:
    await put(scene, *(job(n) for n in range(1, 4)))
    async with scene.bus.transaction() as transaction:
        # With one put, `find` with the limit 2 reads one record more, which is the query that was run ahead.
        await transaction.find_ahead([RecordQuery(kind="job", limit=3)])
        await transaction.put(job(1, version=1, state="closed"))
        for _ in range(2):
            found = await transaction.find(RecordQuery(kind="job", limit=2))
            assert [(record.id, record.state) for record in found] == [("j1", "closed"), ("j2", "open")]


async def test_records_of_two_kinds_may_have_one_id(scene: Scene) -> None:
    kinds = ("job", "tally")
    await put(scene, job(1), Record(kind="tally", id="j1", state="counting"))
    async with scene.bus.transaction() as transaction:
        found = [await transaction.get(kind, "j1") for kind in kinds]
        assert [record and record.state for record in found] == ["open", "counting"]
        await transaction.put(job(1, state="closed", version=1))
    async with scene.bus.transaction() as transaction:
        found = [await transaction.get(kind, "j1") for kind in kinds]
        assert [record and record.state for record in found] == ["closed", "counting"]


async def test_a_conflict_of_one_kind_is_not_hidden_by_a_record_of_another_kind_with_its_id(scene: Scene) -> None:
    tally = Record(kind="tally", id="j1", state="counting")
    await put(scene, job(1), tally)
    with pytest.raises(Conflict, match="tally j1"):
        await put(scene, job(1, version=1), tally)
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "j1") == job(1, version=1)


async def test_each_of_several_records_is_changed_in_every_field(scene: Scene) -> None:
    await put(scene, job(1, indexed={"owner": "a"}), job(2), job(3))
    due = utc_now() - HOUR
    changed = [
        job(1, version=1, state="closed", doc={"n": 1}),
        job(2, version=1, indexed={"owner": "b"}, due_at=due),
        job(3, version=1, indexed={"owner": "b"}, doc={"n": 3}),
    ]
    await put(scene, *changed)
    async with scene.bus.transaction() as transaction:
        by_owner = await transaction.find(RecordQuery(kind="job", index="owner", value="b"))
        assert [record.id for record in by_owner] == ["j2", "j3"]
        assert [record.id for record in await transaction.find(RecordQuery(kind="job", due_by=utc_now()))] == ["j2"]
        assert await transaction.find(RecordQuery(kind="job", index="owner", value="a")) == []
        closed = await transaction.get("job", "j1")
    assert closed is not None
    assert (closed.version, closed.state, closed.indexed, closed.doc) == (2, "closed", {}, {"n": 1})
