"""The streams, records and helpers that all contract tests use."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import isawaitable
from typing import Any, TypeVar, overload
from uuid import UUID

from kingdom.bus import (
    EFFECTS,
    Bus,
    Dead,
    Delivery,
    Dispatcher,
    Done,
    Envelope,
    LogCursor,
    LogEntry,
    LoggedEntry,
    Operations,
    RecordKind,
    RetryPolicy,
    Stream,
    Topology,
    Worker,
)
from kingdom.bus.operations import DeadFilter, DeadLetter, Situation
from kingdom.bus.outcome import AnyOutcome
from kingdom.bus.sequence import SEQUENCES
from kingdom.bus.why import why
from tests.contract import bystanders
from tests.contract.backends import LONG, BackendUnderTest
from tests.contract.picture import Picture, violations
from tests.patience import PATIENCE_SECONDS

ATTEMPTS = 5
NO_WAIT = timedelta(0)
HOUR = timedelta(hours=1)

_RETRY = RetryPolicy(base=timedelta(milliseconds=10), cap=timedelta(milliseconds=20), max_attempts=ATTEMPTS)


def streams(lease: timedelta) -> Topology:
    return Topology(
        replace(stream, retry=_RETRY, lease=lease)
        for stream in (
            Stream(name="free", subscribes=frozenset({"Ping", "Both"})),
            Stream(name="other", subscribes=frozenset({"Both"})),
            Stream(name="line", subscribes=frozenset({"Step", "Both"}), ordered=True, on_dead="block"),
            Stream(name="skipping", subscribes=frozenset({"Skip"}), ordered=True, on_dead="skip"),
            Stream(name="host.{name}"),
            *(Stream(name=name, ordered=name != "bystanders.free") for name in bystanders.STREAMS),
        )
    )


# Only a test ends these leases.
TOPOLOGY = streams(lease=HOUR)
# For a process whose lease expires by itself.
QUICK = streams(lease=timedelta(milliseconds=100))
# For stopped processes: the test really waits until their transactions are aborted.
QUICK_IDLE = timedelta(seconds=3)
KINDS = (
    RecordKind(
        name="job",
        directories={"open": "open", "closed": "closed"},
        final=frozenset({"closed"}),
        indexes=("owner", "team", "city"),
    ),
    RecordKind(name="tally", directories={"counting": "counting"}, indexes=("owner",)),
    EFFECTS,
    SEQUENCES,
)
T = TypeVar("T")
Make = Callable[..., Envelope]


def ping(number: int = 0) -> Envelope:
    return Envelope(type="Ping", payload={"number": number})


def step(key: str = "k", number: int = 0) -> Envelope:
    return Envelope(type="Step", partition_key=key, payload={"number": number})


def skip(key: str = "k", number: int = 0) -> Envelope:
    return Envelope(type="Skip", partition_key=key, payload={"number": number})


def ids(things: Sequence[Envelope] | Sequence[Delivery] | Sequence[DeadLetter]) -> list[UUID]:
    return [thing.envelope.event_id if isinstance(thing, Delivery) else thing.event_id for thing in things]


@overload
async def eventually(condition: Callable[[], Awaitable[T]], what: str) -> T: ...
@overload
async def eventually(condition: Callable[[], T], what: str) -> T: ...
async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and fail with its name if it does not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = condition()
        if isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)


@dataclass(slots=True)
class Scene:
    """One store with a bus, and the operations that tests use."""

    backend: BackendUnderTest
    bus: Bus
    operations: Operations
    bystanders: frozenset[UUID] = frozenset()

    def second(self, idle_limit: timedelta = LONG) -> contextlib.AbstractAsyncContextManager[Bus]:
        return self.backend.open(TOPOLOGY, KINDS, idle_limit)

    @property
    def picture(self) -> Picture:
        return bystanders.part_without(self.backend.picture(), self.bystanders)

    async def claim(
        self, stream: str, limit: int = 100, *, by: str = "worker", bus: Bus | None = None
    ) -> list[Delivery]:
        """Claim without shortcuts, so that an empty result means that no event is due."""
        self.backend.reset_shortcuts(bus or self.bus)
        await self.backend.until_arrived(bus or self.bus, stream)
        return await (bus or self.bus).claim(stream, limit, by)

    async def claim_one(self, stream: str) -> Delivery:
        (delivery,) = await self.claim(stream, 1)
        return delivery

    async def settle(self, outcome: AnyOutcome, *deliveries: Delivery) -> None:
        async with self.bus.transaction() as transaction:
            for delivery in deliveries:
                await transaction.settle(delivery, outcome)

    async def lose(self, *deliveries: Delivery) -> int:
        """Expire and reap the leases of deliveries, and return how many events were returned."""
        self.backend.expire({delivery.token for delivery in deliveries})
        return await self.reap()

    async def lose_all(self) -> int:
        """Expire and reap every lease."""
        self.backend.expire(self.picture.leases)
        return await self.reap()

    async def until_nothing_is_held(self) -> None:
        """Expire and reap every lease, after the server has aborted the transactions that lock them."""

        async def nothing_is_held() -> bool:
            await self.lose_all()
            return not self.picture.leases

        await eventually(nothing_is_held, "nothing is held")

    async def reap(self) -> int:
        self.backend.reset_shortcuts(self.bus)
        return await self.bus.reap()

    async def kill_next(self, stream: str) -> Delivery:
        """Claim the next event of a stream alone and settle it as DEAD."""
        delivery = await self.claim_one(stream)
        await self.settle(Dead("broken", "broken"), delivery)
        return delivery

    async def situation(self, event: Envelope | Delivery) -> Situation:
        envelope = event.envelope if isinstance(event, Delivery) else event
        (situation,) = await self.operations.situations(envelope.event_id)
        return situation

    async def why(self, event: Envelope | Delivery) -> str:
        return why(await self.situation(event))

    async def status(self, event: Envelope | Delivery) -> str:
        return (await self.situation(event)).status

    async def dead(self, **which: str) -> list[DeadLetter]:
        letters = await self.operations.dead_letters(DeadFilter(**which), 100)  # type: ignore[arg-type]
        return [letter for letter in letters if letter.event_id not in self.bystanders]

    async def redrive(self, *deliveries: Delivery) -> list[UUID]:
        return await self.operations.redrive([delivery.position for delivery in deliveries], actor="tester")

    async def discard(self, *deliveries: Delivery) -> list[UUID]:
        positions = [delivery.position for delivery in deliveries]
        return await self.operations.discard(positions, reason="not needed", actor="tester")

    async def cancel(self, event: Envelope | Delivery) -> str:
        envelope = event.envelope if isinstance(event, Delivery) else event
        situation = await self.situation(envelope)
        return await self.operations.cancel(envelope.event_id, situation.stream, actor="tester")

    async def log_types(self) -> list[str]:
        return [logged.entry.type for logged in await self.read_log()]

    async def read_log(self) -> list[LoggedEntry]:
        """Write an entry, and read the whole log up to it."""
        mark = LogEntry(type="mark", actor="tester")
        async with self.bus.transaction() as transaction:
            await transaction.append(mark)

        async def up_to_mark() -> list[LoggedEntry]:
            entries = await self.operations.read_log(LogCursor(), 10_000)
            return entries if entries and entries[-1].entry.trace_id == mark.trace_id else []

        return (await eventually(up_to_mark, "the newest entry can be read"))[:-1]

    async def drain(self, stream: str, *, size: int = 100, bound: int = 200) -> list[Delivery]:
        """Claim and complete until the stream is empty, and return the deliveries in the order of completion."""
        done: list[Delivery] = []
        for _ in range(bound):
            claimed = await self.claim(stream, size)
            if not claimed:
                return done
            for delivery in claimed:
                await self.settle(Done(), delivery)
                done.append(delivery)
        raise AssertionError(f"stream {stream} does not become empty")

    def check(self) -> None:
        broken = violations(self.picture)
        assert not broken, broken

    @asynccontextmanager
    async def working(self, dispatcher: Dispatcher, *streams: str, bus: Bus | None = None) -> AsyncIterator[Worker]:
        """Run a real Worker during the block."""
        poll = timedelta(milliseconds=20)
        worker = Worker(bus or self.bus, dispatcher, streams, name="the-worker", poll=poll)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running

    async def until_waiting(self, count: int) -> None:
        await eventually(lambda: self.backend.waiting() >= count, f"{count} wait for a lock")


@contextlib.contextmanager
def nothing_changes(scene: Scene) -> Iterator[None]:
    before = scene.picture
    yield
    assert scene.picture == before
