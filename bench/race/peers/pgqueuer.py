"""pgqueuer on asyncpg and uvloop, with batches of 100."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from bench.race.player import Contestant, Job, Progress, address_parts, batches, payload, play, timed_payload

_BATCH = 100
_NAME = "ping"


class PgQueuerWorker(Contestant):
    """One process with one connection."""

    _connection: Any

    async def prepare(self, job: Job) -> None:
        """Create the tables, all of them logged."""
        await self.open(job)
        await Queries(AsyncpgDriver(self._connection)).install()
        await self.close()

    async def open(self, job: Job) -> None:
        """Connect."""
        parts = address_parts(job.dsn)
        self._connection = await asyncpg.connect(
            host=parts["host"], port=int(parts["port"]), user=parts["user"], database=parts["dbname"]
        )

    async def publish(self, job: Job) -> None:
        """Enqueue one batch per transaction."""
        queries = Queries(AsyncpgDriver(self._connection))
        for numbers in batches(job):
            bodies = [json.dumps(payload(number)).encode() for number in numbers]
            if job.batch == 1:
                await queries.enqueue(_NAME, bodies[0])
            else:
                await queries.enqueue([_NAME] * len(bodies), bodies, [0] * len(bodies))

    async def drain(self, job: Job, progress: Progress) -> None:
        """Handle everything with an entrypoint that only counts."""
        del job

        async def count(received: Any) -> None:
            json.loads(received.payload)
            progress.add()

        await self._work(count, progress)

    async def send(self, number: int, sent: int) -> None:
        """Enqueue one job."""
        body = json.dumps(timed_payload(number, sent)).encode()
        await Queries(AsyncpgDriver(self._connection)).enqueue(_NAME, body)

    async def receive(self, job: Job, progress: Progress) -> None:
        """Handle jobs as they arrive."""
        del job

        async def note(received: Any) -> None:
            progress.note(json.loads(received.payload)["sent"])

        await self._work(note, progress)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _work(self, handler: Any, progress: Progress) -> None:
        queue = PgQueuer(AsyncpgDriver(self._connection))
        queue.entrypoint(_NAME)(handler)

        async def stop_when_complete() -> None:
            await progress.completed()
            queue.shutdown.set()

        stopping = asyncio.create_task(stop_when_complete())
        await queue.qm.run(batch_size=_BATCH, dequeue_timeout=timedelta(seconds=1))
        await stopping


if __name__ == "__main__":
    play(PgQueuerWorker(), uvloop.new_event_loop)
