"""Real processes, killed and stopped at the worst moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kingdom.bus import Dispatcher, Done, Envelope, Event, Record, RecordQuery, Transaction
from tests.contract.processes import Child, child
from tests.contract.scene import HOUR, Scene, eventually, ids, nothing_changes, ping, step
from tests.patience import PATIENCE_SECONDS


def counting() -> Dispatcher:
    """Return handlers that record which process has handled an event, like those of the child."""
    dispatcher = Dispatcher()

    @dispatcher.reaction("Ping")
    async def handle(event: Event[dict[str, int]], transaction: Transaction) -> None:
        name = str(event.payload["number"])
        seen = await transaction.get("tally", name) or Record(kind="tally", id=name, state="counting", doc={"by": []})
        doc = {"by": [*seen.doc["by"], "parent"]}
        await transaction.put(Record(kind="tally", id=name, state="counting", version=seen.version, doc=doc))

    return dispatcher


async def tallies(scene: Scene) -> dict[str, list[str]]:
    async with scene.bus.transaction() as transaction:
        return {record.id: record.doc["by"] for record in await transaction.find(RecordQuery(kind="tally"))}


@asynccontextmanager
async def recovering(scene: Scene) -> AsyncIterator[None]:
    """Let a second worker, with its own bus, take over the events of the child."""
    async with scene.second() as bus, scene.working(counting(), "free", bus=bus):
        yield


async def test_a_stopped_process_that_continues_after_its_lease_changes_nothing(scene: Scene) -> None:
    await scene.bus.publish(ping())
    async with child(scene, "settle_late") as zombie:
        token = (await zombie.read_facts())["token"]
        await zombie.stop()
        await eventually(scene.reap, "the lease of the stopped process ends by itself")
        owner = await scene.claim_one("free")
        assert owner.token > token
        with nothing_changes(scene):
            zombie.wake()
            zombie.go_on()
            assert (await zombie.read_facts())["alive"] == []
            assert (await zombie.read_facts())["settled"] == "lost"
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "of-the-zombie") is None
    await scene.settle(Done(), owner)
    assert await scene.status(owner) == "DONE"


async def test_a_process_that_continues_within_its_lease_settles_normally(scene: Scene) -> None:
    await scene.bus.publish(ping())
    async with child(scene, "settle_late") as living:
        token = (await living.read_facts())["token"]
        scene.bus.renew({token: HOUR})
        await living.stop()
        assert await scene.reap() == 0
        living.wake()
        living.go_on()
        assert (await living.read_facts())["alive"] == [token]
        assert (await living.read_facts())["settled"] == "kept"
    assert [row.status for row in scene.picture.rows] == []


async def test_a_worker_stopped_inside_a_reaction_is_replaced_and_its_reaction_counts_once(scene: Scene) -> None:
    await scene.bus.publish(ping(1))
    async with child(scene, "work") as zombie:
        assert (await zombie.read_facts())["handling"] == 1
        await zombie.stop_unlocked()
        await scene.until_nothing_is_held()
        async with recovering(scene):
            await eventually(lambda: tallies(scene), "another worker has handled it")
        zombie.wake()
        zombie.go_on()
        # The next event that it handles shows that it has recovered from the loss of the first.
        await scene.bus.publish(ping(2))
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(zombie.always_go_on())
            await eventually(lambda: not scene.picture.rows, "both are done")
            answering.cancel()
        await zombie.kill()
    assert await tallies(scene) == {"1": ["parent"], "2": ["child"]}


async def test_the_events_of_a_killed_worker_are_recovered_and_handled_once(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(5)))
    async with child(scene, "work") as victim:
        assert (await victim.read_facts())["handling"] == 0
        await victim.kill()
        assert len(scene.picture.rows) == 5
        await scene.until_nothing_is_held()
        async with recovering(scene):
            await eventually(lambda: not scene.picture.rows, "all are done")
    assert await tallies(scene) == {str(number): ["parent"] for number in range(5)}


async def test_an_event_that_kills_every_worker_ends_dead_and_the_others_are_done(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(3)))
    killed = 0
    while not await scene.dead():
        async with child(scene, "die_of_zero") as victim:

            async def over(victim: Child = victim) -> bool:
                return victim.has_ended or bool(await scene.dead())

            await eventually(over, "the worker is killed, or the poison is dead")
            killed += victim.has_ended
        await scene.lose_all()
    async with recovering(scene):
        await eventually(lambda: not [row for row in scene.picture.rows if row.open], "the others are done")
    # At most one kill while the event shares its lease, which only makes it a suspect, and three kills alone.
    assert 0 < killed <= 4
    (letter,) = await scene.dead()
    assert (letter.error_code, letter.envelope["payload"]) == ("quarantined", {"number": 0})
    assert [scene.picture.ended[event] for event in scene.picture.ended] == [["free"], ["free"]]


async def test_a_process_that_is_stopped_while_it_locks_a_key_does_not_block_other_publishers(scene: Scene) -> None:
    mine: Envelope = step("k", 1)
    async with child(scene, "publish_slowly") as holder:
        assert (await holder.read_facts())["locked"] == "k"
        await holder.stop()
        publishing = asyncio.create_task(scene.bus.publish(mine))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await publishing
        # The other process was not continued: its transaction was aborted.
        holder.wake()
        holder.go_on()
        assert await holder.was_fenced_off()
    assert ids(await scene.drain("line")) == [mine.event_id]
