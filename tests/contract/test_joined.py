"""A transaction of the bus inside the caller's: the caller's rows and the events are committed together."""

import asyncio
from contextlib import suppress

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import tuple_row

from kingdom.bus import Delivery, Done, Envelope, LogEntry, Record, RecordQuery
from kingdom.errors import Conflict, Misconfigured
from tests.contract.backends import Caller
from tests.contract.scene import HOUR, Scene, ids, nothing_changes, ping, step

REPEATABLE = IsolationLevel.REPEATABLE_READ


async def test_the_callers_rows_and_our_events_are_committed_together(scene: Scene) -> None:
    event, line = ping(), step()
    async with scene.backend.caller(scene.bus) as caller:
        assert scene.bus.joins_callers_transaction
        await caller.connection.execute("CREATE TABLE invoice (id int)")
        await caller.connection.execute("INSERT INTO invoice VALUES (7)")
        async with caller.join() as transaction:
            await transaction.publish(event, line)
            await transaction.put(Record(kind="job", id="1", state="open"))
            assert await transaction.once("scope", "key", HOUR)
            await transaction.append(LogEntry(type="billed", actor="tester"))
        assert await scene.claim("free") == []
        await caller.commit()
        assert await (await caller.connection.execute("SELECT id FROM invoice")).fetchall() == [(7,)]
    assert ids(await scene.claim("free")) == [event.event_id]
    assert ids(await scene.claim("line")) == [line.event_id]
    assert await scene.log_types() == ["billed"]


async def test_nothing_is_left_when_the_caller_rolls_back(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as caller:
        with nothing_changes(scene):
            async with caller.join() as transaction:
                await transaction.publish(ping(), step(), *map(ping, range(1200)))
                await transaction.put(Record(kind="job", id="1", state="open"))
                assert await transaction.once("scope", "key", HOUR)
                await transaction.append(LogEntry(type="never", actor="tester"))
            await caller.rollback()
    async with scene.bus.transaction() as transaction:
        assert await transaction.find(RecordQuery(kind="job")) == []
        assert await transaction.once("scope", "key", HOUR)
    assert await scene.log_types() == []


async def test_a_block_that_fails_leaves_the_callers_transaction_to_the_caller(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as caller:
        await caller.connection.execute("CREATE TABLE invoice (id int)")
        with suppress(ZeroDivisionError):
            async with caller.join() as transaction:
                await transaction.publish(ping())
                raise ZeroDivisionError
        await caller.commit()
        assert await (await caller.connection.execute("SELECT id FROM invoice")).fetchall() == []
    assert await scene.claim("free") == []


async def test_errors_of_the_callers_statements_are_raised_unchanged(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as caller:
        with pytest.raises(psycopg.errors.UndefinedTable):
            async with caller.join():
                await caller.connection.execute("SELECT * FROM nowhere")


async def test_the_connection_keeps_its_own_row_factory(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as caller:
        caller.connection.row_factory = tuple_row
        async with caller.join() as transaction:
            await transaction.publish(ping())
            assert await (await caller.connection.execute("SELECT 1")).fetchall() == [(1,)]
        assert caller.connection.row_factory is tuple_row


async def test_duplicates_are_reported_to_a_caller_too(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    async with scene.backend.caller(scene.bus) as caller:
        async with caller.join() as transaction:
            await transaction.publish(event, ping())
        await caller.commit()
    assert [copy.envelope.event_id for copy in transaction.duplicates] == [event.event_id]


async def test_a_connection_that_commits_each_statement_is_refused(scene: Scene) -> None:
    async with scene.backend.caller(scene.bus) as caller:
        await caller.connection.set_autocommit(True)
        with pytest.raises(Misconfigured, match="transaction"):
            async with caller.join() as transaction:
                await transaction.publish(step())
        async with caller.connection.transaction(), caller.join() as transaction:
            await transaction.publish(step())
    assert len(await scene.claim("line")) == 1


async def test_a_delivery_settled_in_a_transaction_that_rolls_back_is_delivered_again(scene: Scene) -> None:
    await scene.bus.publish(step())
    delivery = await scene.claim_one("line")
    async with scene.backend.caller(scene.bus) as caller:
        async with caller.join() as transaction:
            await transaction.settle(delivery, Done())
        await caller.rollback()
    # A process closes settled leases at its next claim.
    assert await scene.claim("line") == []
    scene.check()
    assert await scene.lose(delivery) == 1
    await scene.settle(Done(), await scene.claim_one("line"))


async def test_a_delivery_settled_by_a_caller_who_commits_is_done(scene: Scene) -> None:
    await scene.bus.publish(step(), step(number=1))
    first, second = await scene.claim("line")
    async with scene.backend.caller(scene.bus) as caller:
        async with caller.join() as transaction:
            await transaction.settle(first, Done())
        await caller.commit()
    assert await scene.lose(first) == 1
    assert ids(await scene.claim("line")) == ids([second])


@pytest.mark.parametrize("isolation", [None, REPEATABLE])
async def test_two_publishers_of_a_new_key_make_one_head(scene: Scene, isolation: IsolationLevel | None) -> None:
    first, second = step(number=1), step(number=2)
    async with scene.backend.caller(scene.bus) as early, scene.backend.caller(scene.bus, isolation=isolation) as late:
        await late.connection.execute("SELECT 1")
        async with early.join() as transaction:
            await transaction.publish(first)
        publishing = asyncio.create_task(_publish(late, second))
        await scene.until_waiting(1)
        await early.commit()
        await _commit_or_conflict(publishing, late, conflict=isolation is not None)
    expected = [first] if isolation else [first, second]
    assert ids(await scene.drain("line")) == ids(expected)


@pytest.mark.parametrize("isolation", [None, REPEATABLE])
async def test_a_publisher_whose_predecessor_rolls_back_makes_the_head(
    scene: Scene, isolation: IsolationLevel | None
) -> None:
    event = step(number=2)
    async with scene.backend.caller(scene.bus) as early, scene.backend.caller(scene.bus, isolation=isolation) as late:
        await late.connection.execute("SELECT 1")
        async with early.join() as transaction:
            await transaction.publish(step(number=1))
        publishing = asyncio.create_task(_publish(late, event))
        await scene.until_waiting(1)
        await early.rollback()
        await publishing
        await late.commit()
    assert ids(await scene.drain("line")) == [event.event_id]


@pytest.mark.parametrize("isolation", [None, REPEATABLE])
async def test_an_event_published_while_the_last_of_its_key_ends_becomes_the_head_or_conflicts(
    scene: Scene, isolation: IsolationLevel | None
) -> None:
    await scene.bus.publish(step(number=0))
    last, event = await scene.claim_one("line"), step(number=1)
    async with (
        scene.backend.caller(scene.bus) as worker,
        scene.backend.caller(scene.bus, isolation=isolation) as caller,
    ):
        await caller.connection.execute("SELECT count(*) FROM kingdom.outbox_event")
        async with worker.join() as transaction:
            await transaction.settle(last, Done())
        publishing = asyncio.create_task(_publish(caller, event))
        await scene.until_waiting(1)
        await worker.commit()
        kept = await _commit_unless_conflict(publishing, caller)
    assert ids(await scene.drain("line")) == ([event.event_id] if kept else [])
    assert kept or isolation


async def test_settling_the_last_event_of_a_key_finds_an_event_published_at_the_same_time(scene: Scene) -> None:
    await scene.bus.publish(step(number=0))
    last, event = await scene.claim_one("line"), step(number=1)
    async with scene.backend.caller(scene.bus) as caller, scene.backend.caller(scene.bus) as worker:
        async with caller.join() as transaction:
            await transaction.publish(event)
        settling = asyncio.create_task(_settle(worker, last))
        await scene.until_waiting(1)
        await caller.commit()
        await settling
        await worker.commit()
    assert ids(await scene.drain("line")) == [event.event_id]


async def test_a_transaction_with_an_old_snapshot_cannot_settle_an_ordered_event(scene: Scene) -> None:
    await scene.bus.publish(step(number=0))
    last, event = await scene.claim_one("line"), step(number=1)
    async with scene.backend.caller(scene.bus, isolation=REPEATABLE) as worker:
        await worker.connection.execute("SELECT count(*) FROM kingdom.outbox_event")
        await scene.bus.publish(event)
        with pytest.raises(Misconfigured, match="READ COMMITTED"):
            await _settle(worker, last)
        await worker.commit()
    await scene.settle(Done(), last)
    assert ids(await scene.drain("line")) == [event.event_id]


async def test_a_transaction_with_an_old_snapshot_publishes_to_an_ended_key_or_conflicts(scene: Scene) -> None:
    await scene.bus.publish(step(number=0))
    last, event = await scene.claim_one("line"), step(number=1)
    async with scene.backend.caller(scene.bus, isolation=REPEATABLE) as caller:
        await caller.connection.execute("SELECT count(*) FROM kingdom.outbox_event")
        await scene.settle(Done(), last)
        kept = await _commit_unless_conflict(asyncio.create_task(_publish(caller, event)), caller)
    assert ids(await scene.drain("line")) == ([event.event_id] if kept else [])


async def test_two_publishers_of_the_same_event_deliver_it_once(scene: Scene) -> None:
    event = step()
    async with scene.backend.caller(scene.bus) as early, scene.backend.caller(scene.bus) as late:
        async with early.join() as transaction:
            await transaction.publish(event)
        publishing = asyncio.create_task(_publish(late, event))
        await scene.until_waiting(1)
        await early.commit()
        await _commit_unless_conflict(publishing, late)
    assert ids(await scene.drain("line")) == [event.event_id]


async def test_many_publishers_of_few_keys_never_make_two_heads_or_none(scene: Scene) -> None:
    gate = asyncio.Barrier(12)
    events = [[step(key, number) for key in "abc"] for number in range(12)]

    async def publish(number: int) -> None:
        async with scene.backend.caller(scene.bus) as caller:
            await gate.wait()
            async with caller.join() as transaction:
                # In different orders, so that only sorting prevents a deadlock.
                await transaction.publish(*(events[number] if number % 2 else reversed(events[number])))
            await caller.commit()

    await asyncio.gather(*(publish(number) for number in range(12)))
    assert {line[1]: len(scene.picture.heads(line)) for line in scene.picture.keys} == {"a": 1, "b": 1, "c": 1}
    assert sorted(ids(await scene.drain("line"))) == sorted(ids([event for group in events for event in group]))


async def _publish(caller: Caller, event: Envelope) -> None:
    async with caller.join() as transaction:
        await transaction.publish(event)


async def _settle(caller: Caller, delivery: Delivery) -> None:
    async with caller.join() as transaction:
        await transaction.settle(delivery, Done())


async def _commit_unless_conflict(work: asyncio.Task[None], caller: Caller) -> bool:
    try:
        await work
    except Conflict:
        await caller.rollback()
        return False
    await caller.commit()
    return True


async def _commit_or_conflict(work: asyncio.Task[None], caller: Caller, *, conflict: bool) -> None:
    assert await _commit_unless_conflict(work, caller) is not conflict
