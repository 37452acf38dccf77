"""Leases of a real worker: renewed whatever a handler does, and given up when a handler takes too long."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import (
    EFFECTS,
    Acked,
    Attempt,
    CallResult,
    Dispatcher,
    Envelope,
    Event,
    LogEntry,
    Present,
    ReconcileResult,
    Topology,
    Transaction,
)
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import LeaseRenewal
from kingdom.bus.worker.keeper import HeldLease
from kingdom.errors import Unavailable
from tests.integration.blocking_child import GO_ON, jobs
from tests.integration.local_effect import LocalEffect
from tests.integration.processes import child
from tests.integration.running import (
    Limits,
    at_work,
    event,
    eventually,
    numbered,
    open_bus,
    rows,
    stream,
    until_all,
)
from tests.patience import PATIENCE_SECONDS

# Longer than any test, so only the test itself can end such a lease.
LONG_LEASE = 3600.0


@pytest.mark.parametrize("kind", ["sleep", "spin"])
async def test_the_lease_of_a_handler_that_blocks_its_process_is_renewed(dsn: str, kind: str) -> None:
    # During its call an effect holds no lock, so only the renewal keeps other workers away.
    async with (
        open_bus(dsn, jobs(lease=LONG_LEASE)) as bus,
        child("integration.blocking_child", kind, dsn, lease=LONG_LEASE, renewed_early=True) as blocked,
    ):
        envelope, ends = Envelope(type="Call", payload={"n": 1}), set[datetime]()
        await bus.publish(envelope)
        await blocked.wait_for_line("began 1")

        async def renewed_twice() -> bool:
            ends.add((await event(bus, envelope))["locked_until"])
            return len(ends) == 3

        await eventually(renewed_twice)
        assert await bus.reap() == 0
        blocked.signal(GO_ON)
        await until_all(bus, "DONE", 1)
        found = await event(bus, envelope)
    assert [line for line in blocked.lines if line.startswith("began")] == ["began 1"]
    assert (found["attempt_count"], found["crash_count"], found["last_error_code"]) == (1, 0, None)


async def test_a_handler_that_blocks_beyond_its_deadline_loses_its_event_to_another_process(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await transaction.append(LogEntry(type="handled", actor="another", data=received.payload))

    async with (
        open_bus(dsn, jobs(lease=LONG_LEASE)) as bus,
        child("integration.blocking_child", "sleep", dsn, lease=5, deadline=0.3, idle_limit=1) as stuck,
    ):
        envelope = Envelope(type="Job", payload={"n": 1})
        await bus.publish(envelope)
        await stuck.wait_for_line("began 1")
        await eventually(lambda: _reaped(bus))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 1)
        found = await event(bus, envelope)
        handled = await rows(bus, "SELECT actor FROM kingdom.log")
        assert stuck.process.returncode is None
    # On a slow machine the lease may be lost once more, before its handler begins.
    assert found["attempt_count"] == found["crash_count"] + 1 > 1
    assert handled == [{"actor": "another"}]


async def test_a_hanging_handler_is_cancelled_at_its_deadline_and_retried(dsn: str) -> None:
    dispatcher, hung, cut, limits = Dispatcher(), asyncio.Semaphore(0), list[int](), Limits()
    day = timedelta(days=1)

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        if received.payload["n"] == 1 and received.attempt == 1:
            hung.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cut.append(received.payload["n"])
                raise
        await transaction.append(LogEntry(type="handled", actor="test", data=received.payload))

    async with open_bus(dsn, jobs(lease=LONG_LEASE, deadline=day.total_seconds()), idle_limit=2 * day) as bus:
        envelopes = numbered("Job", 3)
        await bus.publish(*envelopes)
        async with at_work(bus, dispatcher, timeout=limits):
            # The event runs once in its group and once alone. Only the run alone counts as an attempt.
            for _ in range(2):
                await hung.acquire()
                limits.let_pass()
            await until_all(bus, "DONE", 3)
        found = [await event(bus, envelope) for envelope in envelopes]
        handled = await rows(bus, "SELECT (data->>'n')::int AS n FROM kingdom.log ORDER BY 1")
    assert [row["attempt_count"] for row in found] == [1, 2, 1]
    assert [row["last_error_code"] for row in found] == [None, "deadline", None]
    assert [row["n"] for row in handled] == [0, 1, 2]
    assert cut == [1, 1]


@pytest.mark.usefixtures("renewed_early")
async def test_a_cancelled_event_is_ended_at_the_next_renewal_and_its_neighbors_are_done(dsn: str) -> None:
    dispatcher, hung = Dispatcher(), asyncio.Event()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        if received.payload["n"] == 1:
            hung.set()
            await asyncio.Event().wait()

    async with open_bus(dsn, jobs(lease=LONG_LEASE)) as bus:
        envelopes = numbered("Job", 3)
        await bus.publish(*envelopes)
        async with at_work(bus, dispatcher):
            await hung.wait()
            assert await PostgresOperations(bus).cancel(envelopes[1].event_id, "jobs", actor="test") == "requested"
            await eventually(lambda: _none_runs(bus))
        found = [await event(bus, envelope) for envelope in envelopes]
    assert [(row["status"], row["last_error_code"]) for row in found] == [
        ("DONE", None),
        ("DEAD", "cancelled"),
        ("DONE", None),
    ]


@pytest.mark.usefixtures("renewed_early")
async def test_a_lease_that_was_taken_away_ends_its_handlers_and_counts_as_lost(dsn: str) -> None:
    dispatcher, registry, began, cut_off = Dispatcher(), CollectorRegistry(), asyncio.Event(), list[int]()

    async def hang(attempt: Attempt) -> CallResult:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append(attempt.number)
            raise
        return Acked()

    async def reconcile_as_present(attempt: Attempt) -> ReconcileResult:
        return Present(attempt.request)

    dispatcher.effect("Job", LocalEffect(hang, reconcile_as_present))
    async with open_bus(dsn, jobs(lease=LONG_LEASE)) as bus:
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher, metrics=WorkerMetrics(registry)):
            await began.wait()
            await eventually(lambda: _taken_away(bus))
            await until_all(bus, "DONE", 1)
    assert cut_off == [1]
    assert registry.get_sample_value("kingdom_outbox_lease_lost_total", {"stream": "jobs"}) == 1


class HangingRenewalBus(PostgresBus):
    """A bus whose renewals hang until the test lets them continue."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.go_on = threading.Event()
        self.asked = set[int]()
        self.in_time: list[bool] = []

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        self.asked |= leases.keys()
        self.in_time.append(self.go_on.wait(PATIENCE_SECONDS))
        return super().renew(leases)


@pytest.mark.usefixtures("renewed_early")
async def test_a_handler_is_cancelled_and_the_loop_continues_while_its_renewal_hangs(
    dsn: str, given_up: set[int]
) -> None:
    dispatcher, began, cut_off = Dispatcher(), asyncio.Event(), asyncio.Event()

    async def hang(_attempt: Attempt) -> CallResult:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.set()
        return Acked()

    dispatcher.effect("Job", LocalEffect(hang))
    async with HangingRenewalBus(dsn, Topology([jobs(lease=LONG_LEASE)]), [EFFECTS]) as bus:
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher):
            await began.wait()
            await eventually(lambda: _hangs(bus))
            given_up |= bus.asked
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                await cut_off.wait()
            # If the loop waited for the hanging thread at the end of the worker, it would never get here.
            asyncio.get_running_loop().call_later(0.2, bus.go_on.set)
    assert bus.in_time
    assert all(bus.in_time)


class RefusedRenewalBus(PostgresBus):
    """A bus that refuses renewals until the test allows them. It records the leases before and after that."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_back = threading.Event()
        self.missed: set[int] = set()
        self.renewed = Counter[int]()

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        if not self.is_back.is_set():
            self.missed |= leases.keys()
            raise Unavailable("the database is unavailable")
        self.renewed.update(leases.keys())
        return super().renew(leases)


@pytest.mark.usefixtures("renewed_early")
async def test_a_lease_that_was_given_up_is_not_renewed_while_its_handler_ends(dsn: str, given_up: set[int]) -> None:
    dispatcher, wound_down, over = Dispatcher(), asyncio.Event(), asyncio.Event()
    async with RefusedRenewalBus(dsn, Topology([jobs(lease=LONG_LEASE)])) as bus:

        @dispatcher.reaction("Job")
        async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
            try:
                await over.wait()
            finally:
                if received.payload["n"] == 0 and not over.is_set():
                    bus.is_back.set()
                    await wound_down.wait()

        lost, kept = numbered("Job", 2)
        async with at_work(bus, dispatcher):
            # Each event has its own lease.
            await bus.publish(lost)
            await eventually(lambda: _missed(bus, 1))
            lost_tokens = frozenset(bus.missed)
            await bus.publish(kept)
            await eventually(lambda: _missed(bus, 2))
            given_up |= lost_tokens
            await eventually(lambda: _renewed_twice(bus, bus.missed - lost_tokens))
            over.set()
            wound_down.set()
            await eventually(lambda: _taken_away(bus))
            await until_all(bus, "DONE", 2)
    assert bus.renewed.keys().isdisjoint(lost_tokens)


async def test_a_lease_whose_events_are_settled_is_not_renewed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, are_due, over = Dispatcher(), threading.Event(), asyncio.Event()
    # No lease is due for renewal until both events were claimed. Then every lease that is kept is due.
    monkeypatch.setattr(HeldLease, "due_at", property(lambda _lease: 0.0 if are_due.is_set() else math.inf))

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        if received.payload["n"] == 1:
            are_due.set()
            await over.wait()

    async with RefusedRenewalBus(dsn, Topology([jobs(lease=LONG_LEASE)])) as bus:
        settled, running = numbered("Job", 2)
        # With one slot, the second event is claimed after the worker has finished with the first.
        async with at_work(bus, dispatcher, concurrency=1):
            await bus.publish(settled)
            await until_all(bus, "DONE", 1)
            await bus.publish(running)
            await eventually(lambda: _misses_any(bus))
            over.set()
            await until_all(bus, "DONE", 2)
    assert len(bus.missed) == 1


async def test_suspects_run_with_nothing_else_in_flight(dsn: str) -> None:
    dispatcher, flying, crowded, seen = Dispatcher(), set[int](), asyncio.Event(), dict[int, set[int]]()
    suspects = {0, 1, 2}

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        n = received.payload["n"]
        seen[n] = set(flying)
        flying.add(n)
        for other in flying:
            seen[other] |= flying
        if len(flying) > 1:
            crowded.set()
        if n not in suspects:
            await crowded.wait()
        await transaction.get("mark", "a turn for the others")
        flying.remove(n)

    async with open_bus(dsn, stream("jobs", "Job", lease=timedelta(milliseconds=1))) as ghost:
        await ghost.publish(*numbered("Job", len(suspects)))
        assert len(await ghost.claim("jobs", 10, "a worker that dies")) == len(suspects)
        await eventually(lambda: _reaped(ghost))
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        # These events are due first, so many are in flight when the suspect is claimed.
        for envelope in numbered("Job", 43)[3:]:
            await bus.publish(envelope)
        await rows(bus, "UPDATE kingdom.outbox_event SET next_retry_at = now() - interval '1 h' WHERE crash_count = 0")
        async with at_work(bus, dispatcher, batch=4):
            await until_all(bus, "DONE", 43)
        crashes = await rows(bus, "SELECT crash_count AS n, count(*) FROM kingdom.outbox_archive GROUP BY 1 ORDER BY 1")
    assert crashes == [{"n": 0, "count": 40}, {"n": 1, "count": 3}]
    assert {n: others for n, others in seen.items() if n in suspects} == {n: {n} for n in suspects}


async def test_a_bus_forgets_a_lease_that_was_lost(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        for envelope in numbered("Job", 3):
            await bus.publish(envelope)
            await bus.claim("jobs", 1, "a worker that stalls")
            await _taken_away(bus)
        (delivery,) = await bus.claim("jobs", 1, "worker")
        await bus.reap()
        assert bus._leases.keys() == {delivery.token}


async def _none_runs(bus: PostgresBus) -> bool:
    return not await rows(bus, "SELECT id FROM kingdom.outbox_all WHERE status IN ('PENDING', 'PROCESSING')")


async def _hangs(bus: HangingRenewalBus) -> bool:
    return bool(bus.asked)


async def _missed(bus: RefusedRenewalBus, count: int) -> bool:
    return len(bus.missed) == count


async def _misses_any(bus: RefusedRenewalBus) -> bool:
    return bool(bus.missed)


async def _renewed_twice(bus: RefusedRenewalBus, tokens: set[int]) -> bool:
    return all(bus.renewed[token] > 1 for token in tokens)


async def _taken_away(bus: PostgresBus) -> bool:
    await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 second'")
    # A worker may have given the lease back before.
    await bus.reap()
    return bool(await rows(bus, "SELECT 1 FROM kingdom.outbox_all WHERE crash_count > 0"))


async def _reaped(bus: PostgresBus) -> bool:
    return await bus.reap() > 0
