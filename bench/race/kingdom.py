"""The product as a user runs it: leases, fences, records and metrics, with ordered and unordered streams."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bench.race.player import Contestant, Job, Progress, batches, payload, play, timed_payload
from kingdom.backends.postgres import PostgresBus, migrate
from kingdom.bus import Dispatcher, Envelope, Event, Record, RecordKind, Stream, Topology, Transaction, Worker
from kingdom.bus.metrics import WorkerMetrics
from kingdom.cli.framework.long_running import collect_garbage_rarely
from kingdom.log_output import configure_logs

KEYS = 1000
STREAM = "race"
_WORKER_ROLES = ("drain", "record", "receive")
_KIND = RecordKind(name="pong", directories={"WRITTEN": "written"})
_Reaction = Callable[[Event[Any], Transaction], Awaitable[None]]


class Kingdom(Contestant):
    """One process with a bus, and a worker if it consumes."""

    _bus: PostgresBus
    _keys: int

    async def prepare(self, job: Job) -> None:
        """Create the tables of the bus."""
        await migrate(job.dsn)

    async def open(self, job: Job) -> None:
        """Open the bus."""
        configure_logs(json=True, level=logging.ERROR)
        self._keys = KEYS if job.options.get("ordered") else 0
        topology = Topology([Stream(name=STREAM, subscribes=frozenset({"Ping"}), ordered=bool(self._keys))])
        self._bus = PostgresBus(job.dsn, topology, [_KIND])
        await self._bus.__aenter__()
        if job.role in _WORKER_ROLES:
            # As `kingdom bus work` does before it begins.
            collect_garbage_rarely()

    async def publish(self, job: Job) -> None:
        """Publish one batch per transaction."""
        for numbers in batches(job):
            await self._bus.publish(*(self._envelope(number, payload(number)) for number in numbers))

    async def drain(self, job: Job, progress: Progress) -> None:
        """Handle everything with a reaction that only counts."""
        del job

        async def count(_event: Event[Any], _transaction: Transaction) -> None:
            progress.add()

        await self._work(count, progress)

    async def record(self, job: Job, progress: Progress) -> None:
        """Handle everything with a reaction that writes one record."""
        del job

        async def write(event: Event[Any], transaction: Transaction) -> None:
            doc = {"number": event.payload["number"]}
            await transaction.put(Record(kind=_KIND.name, id=str(event.envelope.event_id), state="WRITTEN", doc=doc))
            progress.add()

        await self._work(write, progress)

    async def send(self, number: int, sent: int) -> None:
        """Publish one event."""
        await self._bus.publish(self._envelope(number, timed_payload(number, sent)))

    async def receive(self, job: Job, progress: Progress) -> None:
        """Handle events as they arrive."""
        del job

        async def note(event: Event[Any], _transaction: Transaction) -> None:
            progress.note(event.payload["sent"])

        await self._work(note, progress)

    async def close(self) -> None:
        """Close the bus."""
        await self._bus.close()

    async def _work(self, reaction: _Reaction, progress: Progress) -> None:
        dispatcher = Dispatcher()
        dispatcher.reaction("Ping")(reaction)
        worker = Worker(self._bus, dispatcher, [STREAM], metrics=WorkerMetrics())
        stopping = asyncio.create_task(_stop_when_complete(worker, progress))
        await worker.run()
        stopping.cancel()

    def _envelope(self, number: int, body: dict[str, Any]) -> Envelope:
        return Envelope(type="Ping", payload=body, partition_key=f"key-{number % self._keys}" if self._keys else None)


async def _stop_when_complete(worker: Worker, progress: Progress) -> None:
    await progress.completed()
    worker.stop()


if __name__ == "__main__":
    play(Kingdom())
