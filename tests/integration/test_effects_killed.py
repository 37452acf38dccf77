"""Effects of workers that are killed or stopped at the worst moments."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dispatcher, Envelope, Idempotency, Target
from tests.contract.processes import stop
from tests.integration.http_effect import GO_ON, HttpEffect, call, calls
from tests.integration.http_target import HttpTarget, http_target
from tests.integration.processes import Child, child
from tests.integration.running import at_work, event, eventually, open_bus, rows, stream


@pytest.fixture
def target() -> Iterator[HttpTarget]:
    with http_target() as target:
        yield target


@asynccontextmanager
async def stopped_child(dsn: str, target: HttpTarget, idempotency: Idempotency, hang: str) -> AsyncIterator[Child]:
    """Run a worker that has taken the only event and hangs before or after its call."""
    options = {"url": target.url, "idempotency": idempotency.name, "hang": hang}
    async with child("integration.http_effect", dsn, **options) as worker:
        await worker.wait_for_line(hang)
        yield worker


@asynccontextmanager
async def successor(bus: PostgresBus, target: HttpTarget, idempotency: Idempotency) -> AsyncIterator[None]:
    """Run a second worker after the lease of the first one has expired."""
    await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 second'")
    dispatcher = Dispatcher()
    dispatcher.effect("Call", HttpEffect(target.url, Target(name="http", idempotency=idempotency)))
    async with at_work(bus, dispatcher, "calls"):
        yield


@asynccontextmanager
async def published(dsn: str) -> AsyncIterator[tuple[PostgresBus, Envelope]]:
    async with open_bus(dsn, calls(attempts=4), stream("made", "Made")) as bus:
        envelope = call("a")
        await bus.publish(envelope)
        yield bus, envelope


async def ends(bus: PostgresBus, envelope: Envelope) -> tuple[str, str | None]:
    async def ended() -> bool:
        return (await event(bus, envelope))["status"] in ("DONE", "DEAD")

    await eventually(ended)
    found = await event(bus, envelope)
    return found["status"], found["last_error_code"]


async def attempts(bus: PostgresBus) -> list[tuple[str, str]]:
    found = await rows(bus, "SELECT doc->'attempts' AS attempts FROM kingdom.record")
    return [(attempt["state"], attempt["identifier"]) for attempt in found[0]["attempts"]]


@pytest.mark.parametrize("idempotency", list(Idempotency))
async def test_a_call_whose_answer_was_lost_with_its_worker_is_found_and_not_repeated(
    dsn: str, target: HttpTarget, idempotency: Idempotency
) -> None:
    async with published(dsn) as (bus, envelope):
        async with stopped_child(dsn, target, idempotency, "after") as worker:
            worker.signal(signal.SIGKILL)
            await worker.ends()
        async with successor(bus, target, idempotency):
            assert await ends(bus, envelope) == ("DONE", "lease_lost")
        assert [state for state, _ in await attempts(bus)] == ["ACKED"]
        made = await rows(bus, "SELECT id FROM kingdom.outbox_all WHERE event_type = 'Made'")
    assert len(made) == 1
    assert len(target.seen) == len(target.done) == 1


@pytest.mark.parametrize("idempotency", [Idempotency.IDENTIFIER, Idempotency.FENCE])
async def test_a_stopped_worker_that_sends_after_its_lease_has_no_effect(
    dsn: str, target: HttpTarget, idempotency: Idempotency
) -> None:
    # The target refuses a repeated identifier or an old fence, never both, so that each is tested alone.
    target.dedups = idempotency is Idempotency.IDENTIFIER
    async with published(dsn) as (bus, envelope), stopped_child(dsn, target, idempotency, "before") as zombie:
        await stop(zombie.process.pid)
        async with successor(bus, target, idempotency):
            assert await ends(bus, envelope) == ("DONE", "lease_lost")
            zombie.signal(GO_ON)
            zombie.signal(signal.SIGCONT)

            async def sent_late() -> bool:
                return len(target.seen) == 2

            await eventually(sent_late)
            assert [state for state, _ in await attempts(bus)] == ["UNKNOWN", "ACKED"]
    by_successor, late = target.seen
    assert late.fence < by_successor.fence
    assert target.done == [by_successor.identifier]
