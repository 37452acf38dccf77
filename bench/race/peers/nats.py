"""NATS JetStream with file storage: a pull consumer that acknowledges each message, and a push consumer for latency."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from bench.race.player import Contestant, Job, Progress, batches, payload, play, timed_payload

_STREAM, _SUBJECT, _CONSUMER = "race", "race.ping", "race"
_BATCH = 100


class Nats(Contestant):
    """One process with one connection."""

    _connection: Any
    _stream: Any
    _subscription: Any

    async def prepare(self, job: Job) -> None:
        """Create an empty stream with a consumer."""
        await self.open(job)
        with suppress(NotFoundError):
            await self._stream.delete_stream(_STREAM)
        config = StreamConfig(
            name=_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        await self._stream.add_stream(config)
        await self.close()

    async def open(self, job: Job) -> None:
        """Connect, and bind a consumer."""
        self._connection = await nats.connect(job.dsn)
        self._stream = self._connection.jetstream(publish_async_max_pending=_BATCH * 10)
        if job.role == "drain":
            config = ConsumerConfig(max_ack_pending=_BATCH * 10)
            self._subscription = await self._stream.pull_subscribe(_SUBJECT, durable=_CONSUMER, config=config)

    async def publish(self, job: Job) -> None:
        """Publish, and wait for the acknowledgements of each batch. There are no transactions."""
        for numbers in batches(job):
            bodies = [json.dumps(payload(number)).encode() for number in numbers]
            if job.batch == 1:
                await self._stream.publish(_SUBJECT, bodies[0])
            else:
                await asyncio.gather(*[await self._stream.publish_async(_SUBJECT, body) for body in bodies])

    async def drain(self, job: Job, progress: Progress) -> None:
        """Fetch batches until all workers together have handled everything."""
        del job
        fetching = asyncio.create_task(self._fetch(progress))
        completed = asyncio.create_task(progress.completed())
        await asyncio.wait({fetching, completed}, return_when=asyncio.FIRST_COMPLETED)
        await self._connection.flush()
        # A fetch that finds nothing would wait for its timeout.
        fetching.cancel()
        with suppress(asyncio.CancelledError):
            await fetching

    async def _fetch(self, progress: Progress) -> None:
        while not progress.is_complete:
            with suppress(TimeoutError):
                for message in await self._subscription.fetch(_BATCH, timeout=1):
                    json.loads(message.data)
                    await message.ack()
                    progress.add()

    async def send(self, number: int, sent: int) -> None:
        """Publish one message."""
        await self._stream.publish(_SUBJECT, json.dumps(timed_payload(number, sent)).encode())

    async def receive(self, job: Job, progress: Progress) -> None:
        """Handle messages as they arrive."""
        del job

        async def note(message: Any) -> None:
            progress.note(json.loads(message.data)["sent"])
            await message.ack()

        await self._stream.subscribe(_SUBJECT, durable="latency", cb=note, manual_ack=True)
        await progress.completed()

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


if __name__ == "__main__":
    play(Nats())
