"""A worker that lost its lease changes nothing, and its events return to their stream."""

import asyncio

import pytest

from kingdom.bus import Dead, Defer, Done, LogEntry, Record, Retry
from kingdom.bus.outcome import AnyOutcome, Release
from kingdom.errors import LeaseLost
from tests.contract.scene import HOUR, NO_WAIT, Make, Scene, ids, nothing_changes, ping, step

EVERY_OUTCOME: list[AnyOutcome] = [Done(), Retry(NO_WAIT), Defer.by(HOUR, "later"), Dead("broken"), Release()]
BOTH_STREAMS = [("free", ping), ("line", step)]


async def test_an_event_of_an_expired_lease_returns_with_its_attempt_counted(scene: Scene) -> None:
    await scene.bus.publish(ping())
    first = await scene.claim_one("free")
    assert await scene.lose(first) == 1
    again = await scene.claim_one("free")
    assert again.position == first.position
    assert (first.attempt, again.attempt) == (1, 2)


async def test_the_events_of_a_live_lease_are_left_alone(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    lost, kept = await scene.claim_one("free"), await scene.claim_one("free")
    assert await scene.lose(lost) == 1
    await scene.settle(Done(), kept)
    assert await scene.status(kept) == "DONE"


async def test_a_renewed_lease_is_not_reaped(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    scene.backend.expire([delivery.token])
    renewal = await asyncio.to_thread(scene.bus.renew, {delivery.token: HOUR})
    assert renewal.alive == {delivery.token}
    assert await scene.reap() == 0
    await scene.settle(Done(), delivery)


async def test_renewal_extends_only_the_leases_that_are_named(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    named, forgotten = await scene.claim_one("free"), await scene.claim_one("free")
    scene.backend.expire([named.token, forgotten.token])
    await asyncio.to_thread(scene.bus.renew, {named.token: HOUR})
    assert await scene.reap() == 1
    assert (await scene.claim_one("free")).position == forgotten.position


async def test_a_lease_can_be_renewed_from_a_thread_while_the_loop_is_blocked(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    # No await here, so the loop is blocked while the lease is renewed.
    assert scene.bus.renew({delivery.token: HOUR}).alive == {delivery.token}


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("outcome", EVERY_OUTCOME)
async def test_a_settlement_with_a_lost_lease_changes_nothing(
    scene: Scene, stream: str, make: Make, outcome: AnyOutcome
) -> None:
    await scene.bus.publish(make(), make())
    stale = await scene.claim(stream)
    await scene.lose(*stale)
    with nothing_changes(scene), pytest.raises(LeaseLost) as lost:
        await scene.settle(outcome, stale[0])
    assert lost.value.positions <= {delivery.position for delivery in stale}


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("outcome", EVERY_OUTCOME)
async def test_a_settlement_with_an_older_token_does_not_touch_the_new_owner(
    scene: Scene, stream: str, make: Make, outcome: AnyOutcome
) -> None:
    await scene.bus.publish(make())
    stale = await scene.claim_one(stream)
    await scene.lose(stale)
    owner = await scene.claim_one(stream)
    with nothing_changes(scene), pytest.raises(LeaseLost):
        await scene.settle(outcome, stale)
    await scene.settle(Done(), owner)
    assert await scene.status(owner) == "DONE"


async def test_nothing_of_a_transaction_that_settles_too_late_is_kept(scene: Scene) -> None:
    await scene.bus.publish(ping(), step())
    stale, fresh = await scene.claim_one("free"), await scene.claim_one("line")
    await scene.lose(stale)

    async def settle_too_late() -> None:
        async with scene.bus.transaction() as transaction:
            await transaction.put(Record(kind="job", id="1", state="open"))
            await transaction.publish(ping(), step("new"), step())
            await transaction.append(LogEntry(type="never", actor="tester"))
            assert await transaction.once("never", "key", HOUR)
            await transaction.settle(fresh, Done())
            await transaction.settle(stale, Done())

    with nothing_changes(scene), pytest.raises(LeaseLost):
        await settle_too_late()
    async with scene.bus.transaction() as transaction:
        assert await transaction.get("job", "1") is None
        assert await transaction.once("never", "key", HOUR)
    assert await scene.log_types() == []


async def test_a_transaction_holds_only_the_deliveries_that_are_still_leased(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    lost, ours = await scene.claim_one("free"), await scene.claim_one("free")
    await scene.lose(lost)
    async with scene.bus.transaction(hold=[lost, ours]) as transaction:
        assert transaction.held == (ours,)


async def test_a_lease_ends_with_its_last_event_though_a_settlement_failed_before(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    first, second = await scene.claim("free")
    await scene.settle(Done(), first)
    with pytest.raises(LeaseLost) as lost:
        await scene.settle(Done(), first, second)
    assert lost.value.positions == {first.position}
    await scene.settle(Done(), second)
    # A claim also closes the leases that are settled.
    assert await scene.claim("free") == []
    assert first.token not in scene.picture.leases


async def test_a_renewal_reports_only_leases_that_are_not_lost_and_changes_nothing(scene: Scene) -> None:
    await scene.bus.publish(ping())
    stale = await scene.claim_one("free")
    await scene.lose(stale)
    owner = await scene.claim_one("free")
    with nothing_changes(scene):
        renewal = await asyncio.to_thread(scene.bus.renew, {stale.token: HOUR, owner.token: HOUR})
    assert renewal.alive == {owner.token}


async def test_tokens_only_grow(scene: Scene) -> None:
    await scene.bus.publish(ping(), step())
    tokens = []
    async with scene.second() as second:
        for _ in range(3):
            for bus in (scene.bus, second):
                for stream in ("free", "line"):
                    (delivery,) = await scene.claim(stream, bus=bus)
                    tokens.append(delivery.token)
                    await scene.settle(Defer.by(NO_WAIT, "again"), delivery)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("stream", "make"), BOTH_STREAMS)
@pytest.mark.parametrize("outcome", EVERY_OUTCOME)
async def test_a_delivery_is_settled_once(scene: Scene, stream: str, make: Make, outcome: AnyOutcome) -> None:
    # The other event keeps the lease alive.
    await scene.bus.publish(make(), make())
    delivery, _ = await scene.claim(stream)
    await scene.settle(outcome, delivery)
    for second in EVERY_OUTCOME:
        with nothing_changes(scene), pytest.raises(LeaseLost):
            await scene.settle(second, delivery)


async def test_only_the_unsettled_events_of_a_lost_lease_are_requeued(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(4)))
    done, retried, rest, other = await scene.claim("free")
    await scene.settle(Done(), done)
    await scene.settle(Retry(HOUR), retried)
    assert await scene.lose(rest) == 2
    assert await scene.status(done) == "DONE"
    assert (await scene.claim_one("free")).position != retried.position
    assert {rest.position, other.position} == {row.position for row in scene.picture.rows if row.crash_count}


async def test_a_lease_is_kept_until_its_last_event_is_settled(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    done, rest = await scene.claim("free")
    await scene.settle(Done(), done)
    # A process closes settled leases at its next claim.
    assert await scene.claim("free") == []
    assert scene.bus.renew({rest.token: HOUR}).alive == {rest.token}
    await scene.settle(Done(), rest)


async def test_no_event_of_a_completely_settled_lease_is_requeued(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    deliveries = await scene.claim("free")
    await scene.settle(Done(), deliveries[0])
    await scene.settle(Defer.by(NO_WAIT, "again"), deliveries[1])
    async with scene.second() as second:
        (owner,) = await scene.claim("free", bus=second)
        assert await scene.lose(deliveries[0]) == 0
        await scene.settle(Done(), owner)


async def test_concurrent_reapers_requeue_each_event_once(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(60)))
    deliveries = [await scene.claim_one("free") for _ in range(60)]
    scene.backend.expire({delivery.token for delivery in deliveries})
    async with scene.second() as second:
        counts = await asyncio.gather(scene.bus.reap(), second.reap(), scene.bus.reap(), second.reap())
    assert sum(counts) == 60
    assert {row.crash_count for row in scene.picture.rows} == {1}


async def test_a_late_settlement_does_not_end_the_newer_lease_of_the_same_process(scene: Scene) -> None:
    await scene.bus.publish(ping())
    stale = await scene.claim_one("free")
    await scene.lose(stale)
    owner = await scene.claim_one("free")
    with pytest.raises(LeaseLost):
        await scene.settle(Done(), stale)
    # A process closes settled leases at its next claim.
    assert await scene.claim("free") == []
    scene.check()
    assert await scene.lose(owner) == 1


async def test_released_events_keep_their_attempt_number_and_their_order(scene: Scene) -> None:
    events = [step(number=number) for number in range(3)]
    await scene.bus.publish(*events)
    deliveries = await scene.claim("line")
    await scene.settle(Release(), *deliveries)
    again = await scene.claim("line")
    assert ids(again) == ids(events)
    assert {delivery.attempt for delivery in again} == {1}
