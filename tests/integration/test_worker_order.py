"""Ordered streams under a real worker: the events of each key are handled in order, whatever fails."""

import asyncio
from collections import defaultdict
from datetime import timedelta

from prometheus_client import CollectorRegistry

from kingdom.bus import (
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Envelope,
    Event,
    LogEntry,
    RetryPolicy,
    Throttled,
    Transaction,
)
from kingdom.bus.metrics import WorkerMetrics
from kingdom.errors import LeaseLost
from tests.integration.local_effect import LocalEffect
from tests.integration.running import (
    at_work,
    event,
    eventually,
    numbered,
    open_bus,
    rows,
    statuses,
    stream,
    until_all,
)

KEYS = ("a", "b", "c")


def line(event_type: str, count: int, key: str) -> list[Envelope]:
    return numbered(event_type, count, partition_key=key)


async def test_later_events_of_a_key_wait_for_an_event_that_is_retried(dsn: str) -> None:
    dispatcher, runs, failing = Dispatcher(), list[tuple[str, int]](), ("a", 2)

    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        step = (str(received.envelope.partition_key), received.payload["n"])
        runs.append(step)
        await transaction.append(LogEntry(type="step", actor=step[0], data=received.payload))
        others = await rows(bus, "SELECT seq FROM kingdom.log WHERE actor <> 'a'") if step == failing else []
        if step == failing and (received.attempt < 3 or len(others) < 12):
            raise ConnectionError("not before all others are done")

    retry = RetryPolicy(base=timedelta(milliseconds=20), factor=1, max_attempts=1000)
    steps = {key: line("Step", 6, key) for key in KEYS}
    async with open_bus(dsn, stream("steps", "Step", ordered=True, retry=retry)) as bus:
        await bus.publish(*(envelope for envelopes in steps.values() for envelope in envelopes))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 18)
        attempts = {key: [(await event(bus, e))["attempt_count"] for e in steps[key]] for key in KEYS}
        logged = await rows(bus, "SELECT actor, (data->>'n')::int AS n FROM kingdom.log ORDER BY seq")
    tries = attempts["a"][2]
    assert tries >= 3
    assert [n for key, n in runs if key == "a"] == [0, 1, *[2] * tries, 3, 4, 5]
    assert attempts == {"a": [1, 1, tries, 1, 1, 1], "b": [1] * 6, "c": [1] * 6}
    done = [(row["actor"], row["n"]) for row in logged]
    assert {key: [n for k, n in done if k == key] for key in KEYS} == {key: list(range(6)) for key in KEYS}


async def test_reactions_and_effects_of_one_key_keep_their_order(dsn: str) -> None:
    dispatcher, order = Dispatcher(), defaultdict[str, list[int]](list)

    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        order[str(received.envelope.partition_key)].append(received.payload["n"])

    async def call(attempt: Attempt) -> CallResult:
        await asyncio.sleep(0.002)
        order[attempt.request["key"]].append(attempt.request["n"])
        return Acked()

    dispatcher.effect("Call", LocalEffect(call))
    async with open_bus(dsn, stream("steps", "Step", "Call", ordered=True)) as bus:
        for n in range(20):
            kinds = ("Call", "Step") if n % 3 else ("Step", "Call")
            await bus.publish(
                *(
                    Envelope(type=kinds[number % 2], payload={"n": n, "key": key}, partition_key=key)
                    for number, key in enumerate(KEYS)
                )
            )
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 60)
    assert order == {key: list(range(20)) for key in KEYS}


async def test_later_events_of_a_key_wait_for_the_retry_of_the_first(dsn: str) -> None:
    dispatcher, calls, registry = Dispatcher(), list[int](), CollectorRegistry()

    async def call(attempt: Attempt) -> CallResult:
        calls.append(attempt.request["n"])
        return Throttled(timedelta(milliseconds=20)) if len(calls) == 1 else Acked()

    dispatcher.effect("Call", LocalEffect(call))
    async with open_bus(dsn, stream("steps", "Call", ordered=True)) as bus:
        await bus.publish(*line("Call", 3, "a"))
        async with at_work(bus, dispatcher, metrics=WorkerMetrics(registry)):
            await until_all(bus, "DONE", 3)
    assert calls == [0, 0, 1, 2]
    # The worker released the other events itself, so it must not count them as lost.
    assert not registry.get_sample_value("kingdom_outbox_lease_lost_total", {"stream": "steps"})


async def test_two_workers_of_one_ordered_stream_keep_the_order_of_every_key(dsn: str) -> None:
    dispatcher, flying, order = Dispatcher(), set[str](), defaultdict[str, list[int]](list)

    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        key = str(received.envelope.partition_key)
        assert key not in flying
        flying.add(key)
        await transaction.get("mark", "a turn for the others")
        order[key].append(received.payload["n"])
        flying.remove(key)

    keys = [str(number) for number in range(20)]
    async with open_bus(dsn, stream("steps", "Step", ordered=True)) as bus:
        async with at_work(bus, dispatcher, name="one"), at_work(bus, dispatcher, name="two"):
            for n in range(20):
                await bus.publish(*(Envelope(type="Step", payload={"n": n}, partition_key=key) for key in keys))
            await until_all(bus, "DONE", 400)
        attempts = await rows(bus, "SELECT DISTINCT attempt_count AS n FROM kingdom.outbox_archive")
    assert order == {key: list(range(20)) for key in keys}
    assert attempts == [{"n": 1}]


async def test_an_event_whose_transaction_reports_an_unknown_lost_lease_runs_again_after_its_own_lease(
    dsn: str,
) -> None:
    dispatcher, runs, is_broken = Dispatcher(), list[tuple[str, int]](), True

    @dispatcher.reaction("Step")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        step = (str(received.envelope.partition_key), received.payload["n"])
        runs.append(step)
        if is_broken and step == ("a", 0):
            raise LeaseLost([-1])

    async with open_bus(dsn, stream("steps", "Step", ordered=True)) as bus:
        await bus.publish(*line("Step", 2, "a"), *line("Step", 2, "b"))
        async with at_work(bus, dispatcher):

            async def others_are_done() -> bool:
                return await statuses(bus) == {"DONE": 2, "PROCESSING": 2}

            await eventually(others_are_done)
            # A failed group is halved: the event runs with three others, with one, and alone. Its lease then lasts.
            assert runs == [("a", 0), ("a", 0), ("a", 0), ("b", 0), ("b", 1)]
            is_broken = False
            await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 s'")
            await bus.reap()
            await until_all(bus, "DONE", 4)
    assert runs[5:] == [("a", 0), ("a", 1)]
