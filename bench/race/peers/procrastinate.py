"""procrastinate with asynchronous tasks, ten at a time, and notifications."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import procrastinate

from bench.race.player import Contestant, Job, Progress, batches, payload, play, timed_payload

_CONCURRENCY = 10
_NAME = "ping"


class Procrastinate(Contestant):
    """One process with an app, and a worker if it consumes."""

    _app: Any

    async def prepare(self, job: Job) -> None:
        """Create the tables."""
        await self.open(job)
        await self._app.schema_manager.apply_schema_async()
        await self.close()

    async def open(self, job: Job) -> None:
        """Open the pool."""
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=job.dsn))
        await self._app.open_async()

    async def publish(self, job: Job) -> None:
        """Defer one batch per transaction."""
        task = self._app.configure_task(_NAME)
        for numbers in batches(job):
            if job.batch == 1:
                await task.defer_async(**payload(numbers[0]))
            else:
                await task.batch_defer_async(*(payload(number) for number in numbers))

    async def drain(self, job: Job, progress: Progress) -> None:
        """Handle everything with a task that only counts."""
        del job

        async def count(**_arguments: Any) -> None:
            progress.add()

        await self._work(count, progress)

    async def send(self, number: int, sent: int) -> None:
        """Defer one job."""
        await self._app.configure_task(_NAME).defer_async(**timed_payload(number, sent))

    async def receive(self, job: Job, progress: Progress) -> None:
        """Handle jobs as they arrive."""
        del job

        async def note(**arguments: Any) -> None:
            progress.note(arguments["sent"])

        await self._work(note, progress)

    async def close(self) -> None:
        """Close the pool."""
        await self._app.close_async()

    async def _work(self, handler: Callable[..., Awaitable[None]], progress: Progress) -> None:
        self._app.task(name=_NAME)(handler)
        working = asyncio.create_task(
            self._app.run_worker_async(concurrency=_CONCURRENCY, install_signal_handlers=False)
        )
        completed = asyncio.create_task(progress.completed())
        await asyncio.wait({working, completed}, return_when=asyncio.FIRST_COMPLETED)
        # Cancelling lets it finish the jobs that run.
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


if __name__ == "__main__":
    play(Procrastinate())
