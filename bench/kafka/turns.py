"""One measurement, with PostgreSQL alone or with Kafka: publish, relay (only Kafka) and drain.

Each step is measured by the processor time of client and server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.kafka.figures import Turn
from bench.postgres import PrivateCluster
from bench.race.clocks import processor_seconds
from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dispatcher, Envelope, Event, Record, RecordKind, Stream, Topology, Transaction, Worker

STREAM = "bench"
KEYS = 1000
BATCH = 100
KIND = RecordKind(name="pong", directories={"WRITTEN": "written"})
_POLL_SECONDS = 0.01
Role = TypeVar("Role", Worker, Courier)
_Reaction = Callable[[Event[Any], Transaction], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Processor time of server and client per event in µs, and events per second."""

    server_us: float
    client_us: float
    rate: float


def open_bus(dsn: str, brokers: Brokers | None) -> PostgresBus:
    """Return a bus whose stream is on Kafka if there are brokers."""
    transport = "kafka" if brokers else None
    topology = Topology([Stream(name=STREAM, subscribes=frozenset({"Ping"}), ordered=True, transport=transport)])
    return KafkaBus(dsn, topology, [KIND], brokers=brokers) if brokers else PostgresBus(dsn, topology, [KIND])


def ping(number: int) -> Envelope:
    """Return an event of one of many keys."""
    return Envelope(type="Ping", payload={"number": number}, partition_key=f"key-{number % KEYS}")


async def take_turn(cluster: PrivateCluster, dsn: str, brokers: Brokers | None, events: int) -> Turn:
    """Measure everything on a new database: with a reaction that does nothing, and with one that writes a record."""
    async with open_bus(dsn, brokers) as bus:
        publish, relay, drain = await _fill_and_drain(cluster, bus, brokers, events, _nothing)
        *_, record = await _fill_and_drain(cluster, bus, brokers, events, _write_record)
    return Turn(
        publish_us=publish.server_us,
        relay_us=relay.server_us,
        drain_us=drain.server_us,
        relay_client_us=relay.client_us,
        drain_client_us=drain.client_us,
        relay_rate=relay.rate,
        record_rate=record.rate,
    )


async def _fill_and_drain(
    cluster: PrivateCluster, bus: PostgresBus, brokers: Brokers | None, events: int, reaction: _Reaction
) -> tuple[Clocks, Clocks, Clocks]:
    publish = await _measure(cluster, events, lambda: _publish(bus, events))
    relay = Clocks(0.0, 0.0, 0.0)
    if brokers:
        relay = await _measure(cluster, events, lambda: _relay(bus, brokers, events))
    drain = await _measure(cluster, events, lambda: _drain(bus, events, reaction))
    return publish, relay, drain


async def _measure(cluster: PrivateCluster, events: int, work: Callable[[], Awaitable[float]]) -> Clocks:
    """Measure some work, which returns how many seconds it took."""
    if cluster.pid is None:
        raise RuntimeError("PostgreSQL does not run")
    server, client = processor_seconds(cluster.pid), time.process_time()
    seconds = await work()
    client, server = time.process_time() - client, processor_seconds(cluster.pid) - server
    return Clocks(server / events * 1e6, client / events * 1e6, events / seconds)


async def _publish(bus: PostgresBus, events: int) -> float:
    begun = time.monotonic()
    for first in range(0, events, BATCH):
        await bus.publish(*map(ping, range(first, min(first + BATCH, events))))
    return time.monotonic() - begun


async def _relay(bus: PostgresBus, brokers: Brokers, events: int) -> float:
    async with at_work(Courier(bus, brokers)) as courier:
        begun = time.monotonic()
        while courier.sent_events < events:  # noqa: ASYNC110 - the courier has no condition to wait for
            await asyncio.sleep(_POLL_SECONDS)
        return time.monotonic() - begun


async def _drain(bus: PostgresBus, events: int, reaction: _Reaction) -> float:
    """Return the seconds from the first handled event to the last. Joining a consumer group is not part of a drain."""
    times, complete = list[float](), asyncio.Event()

    async def handle(event: Event[Any], transaction: Transaction) -> None:
        await reaction(event, transaction)
        times.append(time.monotonic())
        if len(times) >= events:
            complete.set()

    dispatcher = Dispatcher()
    dispatcher.reaction("Ping")(handle)
    async with at_work(Worker(bus, dispatcher, [STREAM])):
        await complete.wait()
    return times[-1] - times[0]


async def _nothing(_event: Event[Any], _transaction: Transaction) -> None:
    return


async def _write_record(event: Event[Any], transaction: Transaction) -> None:
    doc = {"number": event.payload["number"]}
    await transaction.put(Record(kind=KIND.name, id=str(event.envelope.event_id), state="WRITTEN", doc=doc))


@asynccontextmanager
async def at_work(role: Role) -> AsyncIterator[Role]:
    """Run a worker or a courier, and stop it at the end."""
    running = asyncio.create_task(role.run())
    try:
        yield role
    finally:
        role.stop()
        await running
