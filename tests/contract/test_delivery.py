"""Committed events are delivered at least once, others never."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from kingdom.bus import Bus, Dispatcher, Done, Envelope, Event, Record, Transaction
from kingdom.clock import utc_now
from kingdom.errors import Misconfigured, Unavailable
from tests.contract.backends import BackendUnderTest
from tests.contract.scene import HOUR, KINDS, TOPOLOGY, Scene, eventually, ids, ping
from tests.patience import PATIENCE_SECONDS


class Unwanted(Exception):
    pass


async def test_an_event_of_a_committed_transaction_is_delivered(scene: Scene) -> None:
    event = ping()
    async with scene.bus.transaction() as transaction:
        await transaction.publish(event)
        assert await scene.claim("free") == []
    assert ids(await scene.claim("free")) == [event.event_id]


async def test_an_event_of_a_rolled_back_transaction_is_never_delivered(scene: Scene) -> None:
    async def fail() -> None:
        async with scene.bus.transaction() as transaction:
            await transaction.publish(ping(), Envelope(type="Both", partition_key="k"))
            await transaction.get("job", "1")
            raise Unwanted

    with pytest.raises(Unwanted):
        await fail()
    assert [await scene.claim(stream) for stream in ("free", "other", "line")] == [[], [], []]
    assert scene.picture.rows == []
    assert scene.picture.keys == {}


async def test_an_envelope_arrives_as_it_was_published(scene: Scene) -> None:
    event = Envelope(
        type="Ping",
        payload={"text": "äöü \U0001f451", "list": [1, 2.5, None, {"deep": True}]},
        schema_version=3,
        event_id=uuid4(),
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        trace_id="0123456789abcdef0123456789abcdef",
        owner_id="owner",
        stream="free",
        partition_key="key",
        aggregate_type="Order",
        aggregate_id="o-1",
        attributes={"market": "KR", "strategyKey": "s"},
    )
    await scene.bus.publish(event)
    assert (await scene.claim_one("free")).envelope == event


# A store may use another statement to write many events at once.
MANY = 25


async def test_many_envelopes_arrive_as_they_were_published(scene: Scene) -> None:
    odd = 'tab\t line\n return\r back\\slash \\N \\. quote" äöü \U0001f451'
    events = [
        Envelope(
            type="Ping",
            payload={"text": odd, "number": number, odd: [odd]},
            stream="free",
            owner_id=odd,
            partition_key=odd if number % 2 else None,
            aggregate_type=odd,
            aggregate_id=odd,
            attributes={"text": odd} if number % 3 else {},
        )
        for number in range(MANY)
    ]
    await scene.bus.publish(*events)
    assert [delivery.envelope for delivery in await scene.claim("free")] == events


async def test_many_events_that_are_published_again_are_duplicates_and_the_new_one_among_them_is_not(
    scene: Scene,
) -> None:
    events = [ping(number) for number in range(MANY)]
    await scene.bus.publish(*events)
    again = await scene.bus.publish(*events, new := ping(MANY))
    assert ids([copy.envelope for copy in again]) == ids(events)
    assert ids([delivery.envelope for delivery in await scene.claim("free")]) == ids([*events, new])


async def test_an_event_is_copied_to_every_stream_that_subscribes_to_its_type(scene: Scene) -> None:
    event = Envelope(type="Both", partition_key="k")
    await scene.bus.publish(event)
    for stream in ("free", "other", "line"):
        delivery = await scene.claim_one(stream)
        assert delivery.envelope.event_id == event.event_id
        assert delivery.stream == delivery.envelope.stream == stream


async def test_the_copies_of_an_event_are_settled_independently(scene: Scene) -> None:
    await scene.bus.publish(Envelope(type="Both", partition_key="k"))
    await scene.settle(Done(), await scene.claim_one("free"))
    assert await scene.claim("free") == []
    assert len(await scene.claim("other")) == 1


async def test_only_the_named_stream_gets_an_event(scene: Scene) -> None:
    await scene.bus.publish(Envelope(type="Both", stream="other"))
    assert await scene.claim("free") == []
    assert len(await scene.claim("other")) == 1


async def test_a_member_of_a_family_is_a_stream_of_its_own(scene: Scene) -> None:
    await scene.bus.publish(Envelope(type="Anything", stream="host.a"))
    assert await scene.claim("host.b") == []
    assert len(await scene.claim("host.a")) == 1


async def test_an_undeclared_stream_is_refused(scene: Scene) -> None:
    with pytest.raises(Misconfigured, match="nowhere"):
        await scene.bus.publish(Envelope(type="Ping", stream="nowhere"))


async def test_a_type_without_subscribers_is_stored_in_no_stream(scene: Scene) -> None:
    assert await scene.bus.publish(Envelope(type="Unheard")) == ()
    assert scene.picture.rows == []


async def test_events_come_in_the_order_of_their_publishing(scene: Scene) -> None:
    events = [ping(number) for number in range(20)]
    for event in events[:5]:
        await scene.bus.publish(event)
    await scene.bus.publish(*events[5:])
    assert ids(await scene.claim("free", 7)) + ids(await scene.claim("free", 13)) == ids(events)


async def test_a_claim_takes_no_more_than_its_limit(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(5)))
    assert [len(await scene.claim("free", 2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_done_event_is_never_delivered_again(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.settle(Done(), delivery)
    assert await scene.lose(delivery) == 0
    assert await scene.claim("free") == []
    assert await scene.status(delivery) == "DONE"


async def test_concurrent_claims_never_get_the_same_event(scene: Scene) -> None:
    events = [ping(number) for number in range(60)]
    await scene.bus.publish(*events)
    async with scene.second() as second:
        claims = await asyncio.gather(*(bus.claim("free", 5, "w") for bus in (scene.bus, second) for _ in range(6)))
    claimed = [event for claim in claims for event in ids(claim)]
    assert len(claimed) == len(set(claimed))
    tokens = [claim[0].token for claim in claims if claim]
    assert len(tokens) == len(set(tokens))
    assert set(claimed) | set(ids(await scene.claim("free"))) == set(ids(events))


async def test_a_delayed_event_is_not_delivered_before_its_time(scene: Scene) -> None:
    later, soon = ping(), ping()
    await scene.bus.publish(later, at=utc_now() + HOUR)
    at = utc_now() + timedelta(milliseconds=300)
    await scene.bus.publish(soon, at=at)
    (delivery,) = await eventually(lambda: scene.claim("free"), "the event becomes due")
    assert delivery.envelope.event_id == soon.event_id
    assert utc_now() >= at
    assert await scene.status(later) == "PENDING"


async def test_a_waiting_worker_is_woken_by_a_publisher_on_another_bus(scene: Scene) -> None:
    async with scene.second() as second:
        waiting = asyncio.create_task(scene.bus.wait({"free"}, HOUR))

        async def woken() -> bool:
            await second.publish(ping())
            return waiting.done()

        await eventually(woken, "the waiter returns")
        await waiting


async def test_a_worker_waits_no_longer_than_its_limit(scene: Scene) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await scene.bus.wait({"free"}, timedelta(milliseconds=10))


async def test_a_reaction_that_publishes_an_event_with_a_given_id_runs_once_and_so_do_its_neighbors(
    scene: Scene,
) -> None:
    dispatcher, runs = Dispatcher(), list[int]()

    @dispatcher.reaction("Ping")
    async def forward(event: Event[dict[str, int]], transaction: Transaction) -> None:
        runs.append(event.payload["number"])
        if event.payload["number"] == 1:
            await transaction.publish(Envelope(type="Forwarded", stream="other", event_id=uuid4()))

    events = [ping(number) for number in range(3)]
    await scene.bus.publish(*events)
    async with scene.working(dispatcher, "free"):
        await eventually(lambda: not any(row.open for row in scene.picture.rows if row.stream == "free"), "all ended")
    assert [await scene.status(event) for event in events] == ["DONE"] * 3
    assert sorted(runs) == [0, 1, 2]
    assert len(await scene.claim("other")) == 1


async def counted_numbers(scene: Scene) -> list[int]:
    async with scene.bus.transaction() as transaction:
        tally = await transaction.get("tally", "all")
    return list(tally.doc["seen"]) if tally else []


async def test_a_reaction_takes_effect_once_though_it_fails_and_is_run_again(scene: Scene) -> None:
    dispatcher = Dispatcher()
    runs = 0

    @dispatcher.reaction("Ping")
    async def count(event: Event[dict[str, int]], transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        tally = await transaction.get("tally", "all") or Record(kind="tally", id="all", state="counting", doc={"n": 0})
        seen = [*tally.doc.get("seen", []), event.payload["number"]]
        await transaction.put(
            Record(kind="tally", id="all", state="counting", version=tally.version, doc={"seen": seen})
        )
        await transaction.publish(Envelope(type="Counted", stream="other", payload=event.payload))
        assert await transaction.once("counted", str(event.payload["number"]), HOUR)
        if event.payload["number"] % 3 == 0 and event.attempt == 1:
            raise Unwanted

    async def all_are_counted() -> bool:
        return len(await counted_numbers(scene)) >= 12

    await scene.bus.publish(*map(ping, range(12)))
    async with (
        scene.second() as second,
        scene.working(dispatcher, "free"),
        scene.working(dispatcher, "free", bus=second),
    ):
        await eventually(all_are_counted, "all are counted")
    assert sorted(await counted_numbers(scene)) == list(range(12))
    followups = await scene.claim("other")
    assert sorted(delivery.envelope.payload["number"] for delivery in followups) == list(range(12))
    assert runs >= 12 + 4


@asynccontextmanager
async def closing(backend: BackendUnderTest, turns: int) -> AsyncIterator[tuple[Bus, asyncio.Task[None]]]:
    """Yield a listening bus, some turns of the loop after its close has started."""
    async with backend.open(TOPOLOGY, KINDS) as bus:
        await bus.wait(["free"], timedelta(milliseconds=50))
        await bus.publish(ping())
        first = asyncio.create_task(bus.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        yield bus, first


@pytest.mark.parametrize("turns", range(4, 9))
async def test_a_bus_can_be_closed_several_times_and_refuses_later_calls(backend: BackendUnderTest, turns: int) -> None:
    async with closing(backend, turns) as (bus, first):
        await asyncio.gather(first, bus.close(), bus.close())
        with pytest.raises(Unavailable):
            await bus.publish(ping())
        await bus.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_bus_whose_closing_was_cancelled_can_be_closed(backend: BackendUnderTest, turns: int) -> None:
    async with closing(backend, turns) as (bus, first):
        first.cancel()
        await asyncio.wait([first])
        await bus.close()
