"""A worker on a bus without a store: when it claims, and how its background tasks continue after errors or end it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from kingdom.bus import Bus, Delivery, Dispatcher, Stream, Topology, Transaction, Worker
from kingdom.bus.port import LeaseRenewal
from kingdom.bus.worker import hint_listener
from kingdom.bus.worker import worker as working
from kingdom.errors import KingdomError, Unavailable
from kingdom.log_output import configure_logs
from tests.patience import PATIENCE_SECONDS
from tests.unit.bus.deliveries import delivery

ERRORS = [RuntimeError("a bug"), Unavailable("the store is away"), asyncio.CancelledError()]


class Empty(Bus):
    """A bus without events. Each of its calls can fail once."""

    def __init__(self, **trouble: BaseException) -> None:
        super().__init__(Topology([Stream(name="jobs", lease=timedelta(milliseconds=30))]), [])
        self._trouble = trouble
        self.calls = {"claim": 0, "reap": 0, "wait": 0}

    def _note(self, call: str) -> None:
        self.calls[call] += 1
        if call in self._trouble and self.calls[call] == 1:
            raise self._trouble[call]

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        del stream, limit, worker
        self._note("claim")
        return []

    async def reap(self) -> int:
        self._note("reap")
        return 0

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        del streams
        self._note("wait")
        await asyncio.sleep(at_most.total_seconds())

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        return LeaseRenewal(frozenset(leases), frozenset())

    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_UNAVAILABLE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(hint_listener, "_PAUSE_SECONDS", 0.01)


@asynccontextmanager
async def at_work(bus: Empty) -> AsyncIterator[asyncio.Task[None]]:
    worker = Worker(bus, Dispatcher(), ["jobs"], poll=timedelta(milliseconds=5))
    running = asyncio.create_task(worker.run())
    try:
        yield running
    finally:
        worker.stop()
        await asyncio.wait({running})


async def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["claim", "reap", "wait"])
async def test_an_error_outside_of_handlers_is_reported_once_and_the_worker_continues(
    call: str, error: BaseException
) -> None:
    bus = Empty(**{call: error})
    words = {"claim": "claim failed", "reap": "reaping failed", "wait": "cannot wait for hints"}
    configure_logs(json=True, level=logging.WARNING)
    with capture_logs() as reported:
        async with at_work(bus) as running:
            await until(lambda: bus.calls[call] >= 2)
            assert not running.done()
        await running
    assert [entry["event"] for entry in reported] == [f"{words[call]}, trying again"]


async def test_a_worker_whose_reaper_ends_stops_with_an_error() -> None:
    class Fatal(BaseException):
        pass

    async with at_work(Empty(reap=Fatal("out of order"))) as running:
        await until(running.done)
    with pytest.raises(KingdomError, match="kingdom-reaper has ended") as raised:
        running.result()
    assert isinstance(raised.value.__cause__, Fatal)


class Backlog(Empty):
    """A bus whose first two claims are full, and whose transactions fail. It notes the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        await super().claim(stream, limit, worker)
        self.order.append("claim")
        number = len(self.order)
        return [delivery(position=number * limit + each, token=number) for each in range(limit)] if number < 3 else []

    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        del hold, optimistic
        self.order.append("transaction")
        raise RuntimeError("there is no store")


async def test_the_next_claim_begins_before_the_events_of_a_full_claim_are_handled() -> None:
    bus = Backlog()
    async with at_work(bus):
        await until(lambda: bus.calls["claim"] >= 3)
    assert bus.order[:2] == ["claim", "claim"]
