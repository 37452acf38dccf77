"""The parts that guard and renew the leases of a worker continue after an error, or end the worker with an error."""

import asyncio
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Acked, Attempt, CallResult, Dispatcher, Envelope, Event, Topology, Transaction, Worker
from kingdom.bus.port import LeaseRenewal
from kingdom.bus.worker.keeper import HeldLease
from kingdom.errors import KingdomError
from tests.integration.blocking_child import jobs
from tests.integration.local_effect import LocalEffect
from tests.integration.running import at_work, open_bus
from tests.patience import PATIENCE_SECONDS


async def test_the_lease_guard_continues_after_an_error(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, began, cut_off, looks = Dispatcher(), asyncio.Event(), asyncio.Event(), list[HeldLease]()

    def lost_at(lease: HeldLease) -> float:
        if not began.is_set():
            return math.inf
        looks.append(lease)
        if len(looks) == 1:
            raise RuntimeError("a bug")
        return 0.0

    monkeypatch.setattr("kingdom.bus.worker.keeper.HeldLease.lost_at", property(lost_at))
    monkeypatch.setattr("kingdom.bus.worker.worker.MARGIN_SHARE", 0.0)

    async def hang(_attempt: Attempt) -> CallResult:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.set()
        return Acked()

    dispatcher.effect("Job", LocalEffect(hang))
    async with open_bus(dsn, jobs(lease=3600.0)) as bus:
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher), asyncio.timeout(PATIENCE_SECONDS):
            await cut_off.wait()


class ThreadEndingBus(PostgresBus):
    """A bus whose `renew` ends the thread that calls it."""

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        raise SystemExit(f"not {leases}")


@pytest.mark.usefixtures("renewed_early")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_whose_leases_are_no_longer_renewed_stops_and_reports_it(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(_received: Event[Any], _transaction: Transaction) -> None:
        await asyncio.Event().wait()

    async with ThreadEndingBus(dsn, Topology([jobs(lease=1.0)])) as bus:
        await bus.publish(Envelope(type="Job"))
        worker = Worker(bus, dispatcher, ["jobs"], grace=timedelta())
        with pytest.raises(KingdomError, match="kingdom-lease-guard has ended"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await worker.run()
