"""Records, events, settlements, dedup keys and the log: all or nothing."""

from contextlib import suppress
from datetime import timedelta

import pytest

from kingdom.bus import Delivery, Done, Envelope, LogEntry, Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.errors import Conflict, Misconfigured
from kingdom.ids import new_event_id
from tests.contract.scene import HOUR, Make, Scene, ids, ping, skip, step


def job(number: int, **fields: object) -> Record:
    return Record(**{"kind": "job", "id": f"j{number}", "state": "open", **fields})  # type: ignore[arg-type]


async def put(scene: Scene, *records: Record) -> None:
    async with scene.bus.transaction() as transaction:
        for record in records:
            await transaction.put(record)


async def test_everything_of_a_transaction_is_kept_together(scene: Scene) -> None:
    await scene.bus.publish(step())
    delivery = await scene.claim_one("line")
    event, follower = ping(), step()
    async with scene.bus.transaction(hold=[delivery]) as transaction:
        await transaction.put(job(1, doc={"a": 1}))
        await transaction.publish(event, follower)
        assert await transaction.once("scope", "key", HOUR)
        await transaction.append(LogEntry(type="seen", actor="tester"))
        await transaction.settle(delivery, Done())
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "j1") == job(1, doc={"a": 1}, version=1)
        assert not await transaction.once("scope", "key", HOUR)
    assert await scene.log_types() == ["seen"]
    assert await scene.status(delivery) == "DONE"
    assert ids(await scene.claim("free")) == [event.event_id]
    assert ids(await scene.claim("line")) == [follower.event_id]


async def test_nothing_of_a_failed_transaction_is_kept(scene: Scene) -> None:
    await scene.bus.publish(step())
    delivery = await scene.claim_one("line")
    before = scene.picture
    with suppress(ZeroDivisionError):
        async with scene.bus.transaction(hold=[delivery]) as transaction:
            await transaction.put(job(1))
            await transaction.publish(ping(), step(), *map(ping, range(1500)))
            assert await transaction.once("scope", "key", HOUR)
            await transaction.append(LogEntry(type="never", actor="tester"))
            await transaction.settle(delivery, Done())
            raise ZeroDivisionError
    assert scene.picture == before
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "j1") is None
        assert await transaction.once("scope", "key", HOUR)
    assert await scene.log_types() == []
    await scene.settle(Done(), delivery)


async def test_nothing_of_a_transaction_with_a_conflict_is_kept(scene: Scene) -> None:
    await put(scene, job(1))
    await scene.bus.publish(step())
    delivery = await scene.claim_one("line")
    before = scene.picture

    async def overwrite() -> None:
        async with scene.bus.transaction() as transaction:
            await transaction.publish(ping(), step("other"), *map(ping, range(1500)))
            await transaction.append(LogEntry(type="never", actor="tester"))
            await transaction.put(job(1, doc={"not": "read first"}))
            await transaction.settle(delivery, Done())

    with pytest.raises(Conflict):
        await overwrite()
    assert scene.picture == before
    assert await scene.log_types() == []


async def test_putting_a_record_that_was_read_at_an_older_version_is_a_conflict(scene: Scene) -> None:
    await put(scene, job(1))
    async with scene.bus.transaction() as transaction:
        mine = await transaction.get("job", "j1")
    assert mine is not None
    await put(scene, mine)
    with pytest.raises(Conflict, match="j1"):
        await put(scene, mine)
    async with scene.bus.transaction() as transaction:
        stored = await transaction.get("job", "j1")
    assert stored is not None
    assert stored.version == 2


async def test_of_two_concurrent_creations_of_a_record_one_gets_a_conflict(scene: Scene) -> None:
    async def be_late() -> None:
        async with scene.second() as second, second.transaction() as late:
            await late.put(job(1, doc={"by": "late"}))
            await put(scene, job(1, doc={"by": "early"}))

    with pytest.raises(Conflict):
        await be_late()
    async with scene.bus.transaction() as transaction:
        stored = await transaction.get("job", "j1")
    assert stored is not None
    assert stored.doc == {"by": "early"}


async def test_a_record_may_be_put_several_times_in_one_transaction(scene: Scene) -> None:
    await put(scene, job(1))
    async with scene.bus.transaction() as transaction:
        record = await transaction.get("job", "j1")
        assert record is not None
        once = await transaction.put(job(1, version=record.version, doc={"n": 1}))
        await transaction.put(job(1, version=once.version, doc={"n": 2}))
        with pytest.raises(Conflict):
            await transaction.put(job(1, version=record.version, doc={"n": 3}))
    async with scene.bus.transaction() as transaction:
        stored = await transaction.get("job", "j1")
    assert stored is not None
    assert stored.doc == {"n": 2}
    assert stored.version == 2


async def test_a_transaction_reads_what_it_has_put(scene: Scene) -> None:
    await put(scene, job(1), job(2), job(3, state="closed"))
    async with scene.bus.transaction() as transaction:
        await transaction.put(job(2, version=1, state="closed"))
        await transaction.put(job(4, doc={"new": True}))
        got = await transaction.get("job", "j4")
        assert got is not None
        assert got.doc == {"new": True}
        opened = await transaction.find(RecordQuery(kind="job", state="open"))
        closed = await transaction.find(RecordQuery(kind="job", state="closed"))
        first = await transaction.find(RecordQuery(kind="job", state="open", limit=1))
    assert [record.id for record in opened] == ["j1", "j4"]
    assert [record.id for record in closed] == ["j2", "j3"]
    assert [record.id for record in first] == ["j1"]


async def test_a_page_is_full_although_a_record_on_it_has_just_been_changed(scene: Scene) -> None:
    async with scene.bus.transaction() as transaction:
        for number in "123":
            await transaction.put(Record(kind="job", id=number, state="open"))
    async with scene.bus.transaction() as transaction:
        first = await transaction.get("job", "1")
        assert first
        await transaction.put(first.replace(state="closed"))
        page = await transaction.find(RecordQuery(kind="job", state="open", limit=2))
    assert [record.id for record in page] == ["2", "3"]


async def test_uncommitted_changes_of_others_are_not_visible(scene: Scene) -> None:
    async with scene.second() as second, scene.bus.transaction() as mine:
        await mine.put(job(1))
        async with second.transaction() as other:
            assert await other.get("job", "j1") is None
            assert await other.find(RecordQuery(kind="job")) == []


async def test_records_are_found_by_state_index_and_due_time(scene: Scene) -> None:
    now = utc_now()
    await put(
        scene,
        job(1, indexed={"owner": "ann"}, due_at=now + HOUR),
        job(2, indexed={"owner": "bob"}, due_at=now - timedelta(minutes=1)),
        job(3, indexed={"owner": "ann"}, due_at=now - timedelta(minutes=2)),
        job(4, indexed={"owner": "ann"}, state="closed"),
        Record(kind="tally", id="t", state="counting"),
    )

    async def found(**which: object) -> list[str]:
        async with scene.bus.transaction() as transaction:
            return [record.id for record in await transaction.find(RecordQuery(kind="job", **which))]  # type: ignore[arg-type]

    assert await found() == ["j1", "j2", "j3", "j4"]
    assert await found(state="open", index="owner", value="ann") == ["j1", "j3"]
    assert await found(index="owner", value="ann") == ["j1", "j3", "j4"]
    assert await found(due_by=now) == ["j3", "j2"]
    assert await found(due_by=now, index="owner", value="bob") == ["j2"]
    assert await found(after="j1", limit=2) == ["j2", "j3"]


async def test_a_kind_or_a_state_that_is_not_declared_is_refused(scene: Scene) -> None:
    with pytest.raises(Misconfigured, match="stranger"):
        await put(scene, Record(kind="stranger", id="1", state="open"))
    with pytest.raises(Misconfigured, match="asleep"):
        await put(scene, job(1, state="asleep"))


async def test_a_duplicate_is_reported_and_not_delivered_twice(scene: Scene) -> None:
    event = ping()
    assert await scene.bus.publish(event) == ()
    (copy,) = await scene.bus.publish(event)
    assert (copy.stream.name, copy.envelope) == ("free", event)
    assert len(await scene.claim("free")) == 1


@pytest.mark.parametrize("size", [10, 1500])
@pytest.mark.parametrize("make", [ping, step, skip])
async def test_duplicates_of_a_batch_are_reported_one_by_one(scene: Scene, make: Make, size: int) -> None:
    batch = [make(number=number) for number in range(size)]
    known = batch[::7]
    assert await scene.bus.publish(*known) == ()
    duplicates = await scene.bus.publish(*batch)
    assert sorted(copy.envelope.event_id for copy in duplicates) == sorted(ids(known))
    assert {row.event_id for row in scene.picture.rows} == set(ids(batch))
    assert len(await scene.bus.publish(*batch)) == size
    assert len(scene.picture.rows) == size


@pytest.mark.parametrize("stream", ["free", "line"])
async def test_an_event_among_duplicates_is_delivered_and_settled_like_any_other(scene: Scene, stream: str) -> None:
    def batch(size: int) -> list[Envelope]:
        return [ping(number) if stream == "free" else step(str(new_event_id()), number) for number in range(size)]

    known, size = batch(700), 700
    await scene.bus.publish(*known)
    amid = batch(3)
    # Publish a new event before, between and after the duplicates.
    for place, event in zip((0, size // 2, size), amid, strict=True):
        assert len(await scene.bus.publish(*known[:place], event, *known[place:])) == size
    later = batch(size)
    await scene.bus.publish(*later)
    everything = [*known, *amid, *later]
    assert len({row.position for row in scene.picture.rows}) == len(everything)
    for event in (*amid, *later[::100]):
        assert "waits for a free worker" in await scene.why(event)
    delivered: list[Delivery] = []
    async with scene.second() as other:
        while claimed := await scene.claim(stream, len(everything), bus=other):
            async with other.transaction(hold=claimed) as transaction:
                for delivery in claimed:
                    await transaction.settle(delivery, Done())
            delivered += claimed
    assert sorted(ids(delivered)) == sorted(ids(everything))
    assert not scene.picture.rows
    assert await scene.status(amid[-1]) == "DONE"


async def test_duplicates_are_reported_per_copy(scene: Scene) -> None:
    event = Envelope(type="Both", partition_key="k")
    await scene.bus.publish(Envelope(type="Both", event_id=event.event_id, stream="other"))
    duplicates = await scene.bus.publish(event)
    assert [copy.stream.name for copy in duplicates] == ["other"]
    again = await scene.bus.publish(event)
    assert sorted(copy.stream.name for copy in again) == ["free", "line", "other"]


async def test_an_event_published_twice_in_one_transaction_is_a_duplicate(scene: Scene) -> None:
    event, line = ping(), step()
    async with scene.bus.transaction() as transaction:
        await transaction.publish(event, event, line)
        await transaction.publish(line)
    assert sorted(copy.stream.name for copy in transaction.duplicates) == ["free", "line"]
    assert len(await scene.claim("free")) == 1
    assert len(await scene.claim("line")) == 1


@pytest.mark.parametrize("make", [ping, step, skip])
async def test_a_duplicate_of_an_event_in_any_state_changes_nothing(scene: Scene, make: Make) -> None:
    waiting, flying, dead = (make("a"), make("b"), make("c")) if make is not ping else (ping(), ping(), ping())
    stream = {"Ping": "free", "Step": "line", "Skip": "skipping"}[waiting.type]
    await scene.bus.publish(dead)
    await scene.kill_next(stream)
    await scene.bus.publish(flying)
    (delivery,) = await scene.claim(stream)
    await scene.bus.publish(waiting)
    before = scene.picture
    assert len(await scene.bus.publish(waiting, flying, dead)) == 3
    assert scene.picture == before
    await scene.settle(Done(), delivery)
    assert ids(await scene.drain(stream)) == [waiting.event_id]


async def test_an_event_is_delivered_after_only_duplicates_were_published_to_its_key(scene: Scene) -> None:
    event, next_one = skip(), skip()
    await scene.bus.publish(event)
    await scene.kill_next("skipping")
    assert len(await scene.bus.publish(event)) == 1
    scene.check()
    await scene.bus.publish(next_one)
    assert ids(await scene.claim("skipping")) == [next_one.event_id]


async def test_callbacks_are_called_after_the_commit_in_order(scene: Scene) -> None:
    called: list[str] = []
    async with scene.bus.transaction() as transaction:
        await transaction.put(job(1))
        transaction.after_commit(lambda: called.append("first"))
        transaction.after_commit(lambda: called.append("second"))
        assert called == []
    assert called == ["first", "second"]


async def test_callbacks_of_a_commit_that_fails_are_never_called(scene: Scene) -> None:
    await put(scene, job(1))
    called: list[str] = []
    with suppress(Conflict):
        async with scene.bus.transaction() as transaction:
            await transaction.put(job(1))
            transaction.after_commit(lambda: called.append("never"))
    with suppress(ZeroDivisionError):
        async with scene.bus.transaction() as transaction:
            transaction.after_commit(lambda: called.append("never"))
            raise ZeroDivisionError
    assert called == []


async def test_a_callback_added_after_a_savepoint_is_dropped_with_it(scene: Scene) -> None:
    called: list[str] = []
    async with scene.bus.transaction() as transaction:
        transaction.after_commit(lambda: called.append("kept"))
        savepoint = transaction.changes.savepoint()
        transaction.after_commit(lambda: called.append("taken back"))
        transaction.changes.roll_back_to(savepoint)
    assert called == ["kept"]
