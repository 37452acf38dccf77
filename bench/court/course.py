"""Take events through a court in one process: receive, route, assign and end each one without an agent."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from prometheus_client import CollectorRegistry

from bench.court.webhooks import Webhook, review_asked
from kingdom.bus.delivery import Delivery
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.outcome import Done
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.bus.worker.execution import Execution
from kingdom.bus.worker.keeper import HeldLease
from kingdom.bus.worker.unit import Unit
from kingdom.clock import utc_now
from kingdom.court.documents import AssignmentStatus, Message, MessageStatus
from kingdom.court.general.assignment_end import end_assignment
from kingdom.court.general.context import GeneralContext
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import register
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.timers import run_timers_once
from kingdom.court.package_files import SHIPPED, load_package
from kingdom.court.records import EVENTS, load, save
from kingdom.court.sentinel.receiver import DELIVERY
from kingdom.court.sentinel.records import IntakeResult, accept_activity
from kingdom.court.streams import EVENT_STREAM, MESSAGE_STREAM, RESULT_STREAM
from kingdom.workflow.records import run_transaction

_KEPT = timedelta(days=30)
_EVERYTHING = 1_000_000

# A function that opens a block. The cost of the block is counted under the given name.
Counting = Callable[[str], AbstractContextManager[object]]
RECEIVED, ROUTED, ENDED, CLOCK = "received", "routed and admitted", "ended", "a periodic check"


def _nothing(_: str) -> AbstractContextManager[object]:
    return nullcontext()


class Course:
    """Takes events through the real Sentinel and King. General and Envoy only end their work, and are not counted.

    With `scans` the King reads all events before each reaction; the counts must show this defect.
    """

    def __init__(self, bus: Bus, counting: Counting = _nothing, *, scans: bool = False) -> None:
        package, zone = load_package(SHIPPED / "gen-pr"), ZoneInfo("UTC")
        settings = KingSettings(soldiers=8, soldiers_per_repo=8)
        dispatcher = Dispatcher()
        self._king = KingContext(settings=settings, packages=lambda: [package], zone=zone)
        register(dispatcher, self._king)
        self._bus = bus
        self._counting = counting
        self._scans = scans
        self._execution = Execution(bus, dispatcher, WorkerMetrics(CollectorRegistry()))
        self._general = package.name
        self._general_context = GeneralContext(
            packages=lambda: {package.name: package}, channel="", zone=zone, clock=utc_now
        )

    async def play(self, number: int) -> None:
        """Run one event to its end."""
        with self._counting(RECEIVED):
            await self._receive(review_asked(number))
        with self._counting(ROUTED):
            await self._react(EVENT_STREAM.name)
        (given,) = await self._bus.claim(f"court.task.{self._general}", 10, "bench")
        await self._settle([given], self._end)
        with self._counting(ENDED):
            await self._react(RESULT_STREAM.name)
        await self._settle(await self._bus.claim(MESSAGE_STREAM.name, 10, "bench"), _send)

    async def run_timers(self) -> None:
        """Run the periodic check of the King once."""
        with self._counting(CLOCK):
            await run_timers_once(self._bus, self._king)

    async def _receive(self, webhook: Webhook) -> None:
        async def act(transaction: Transaction) -> IntakeResult:
            assert await transaction.once(DELIVERY, webhook.delivery, _KEPT)
            return await accept_activity(transaction, webhook.activity, None)

        assert await run_transaction(self._bus, act) is IntakeResult.RECEIVED

    async def _react(self, stream: str) -> None:
        """Handle the only event of a stream as a worker of the King does."""
        asked_at = time.monotonic()
        deliveries = await self._bus.claim(stream, 10, "bench")
        assert len(deliveries) == 1, f"{len(deliveries)} events in {stream}"
        if self._scans:
            async with self._bus.transaction() as transaction:
                await transaction.find(RecordQuery(kind=EVENTS.name, limit=_EVERYTHING))
        lease = HeldLease(deliveries[0].token, self._bus.topology.stream(stream).lease, asked_at)
        await self._execution.run(Unit(lease, deliveries, calls_outside=False))

    async def _settle(self, deliveries: list[Delivery], act: Callable[[Delivery, Transaction], Any]) -> None:
        async with self._bus.transaction(deliveries) as transaction:
            for delivery in transaction.held:
                await act(delivery, transaction)
                await transaction.settle(delivery, Done())

    async def _end(self, given: Delivery, transaction: Transaction) -> None:
        await end_assignment(
            self._general_context, transaction, given.envelope.aggregate_id, AssignmentStatus.COMPLETED, "looked"
        )


async def _send(queued: Delivery, transaction: Transaction) -> None:
    record, message = await load(transaction, Message, queued.envelope.aggregate_id)
    await save(transaction, msgspec.structs.replace(message, status=MessageStatus.SENT), record)
