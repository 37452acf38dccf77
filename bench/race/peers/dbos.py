"""dbos with a queue of synchronous workflows without steps."""

import asyncio
import threading
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from bench.race.player import Contestant, Job, Progress, address_parts, batches, payload, play, timed_payload

_QUEUE, _WORKFLOW, _APPLICATION = "race", "ping", "race"
# By default, dbos polls only once a second.
_POLL_SECONDS = 0.02
_AT_ONCE = 100


class Dbos(Contestant):
    """One process with a client, or with the runtime if it consumes."""

    _client: Any = None
    _engine: Any = None

    def __init__(self) -> None:
        # Workflows run in threads, and the count of a worker is not atomic.
        self._lock = threading.Lock()

    async def prepare(self, job: Job) -> None:
        """Create the tables and the queue."""
        await asyncio.to_thread(self._prepare, job)

    async def open(self, job: Job) -> None:
        """Connect a publisher. The runtime starts with its work, since it cannot wait."""
        if job.role in ("publish", "send"):
            url = _url(job)
            self._client = DBOSClient(system_database_url=url, application_name=_APPLICATION)
            self._engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    async def publish(self, job: Job) -> None:
        """Enqueue one batch per transaction."""
        await asyncio.to_thread(self._publish, job)

    async def drain(self, job: Job, progress: Progress) -> None:
        """Handle everything with a workflow that only counts."""

        def count(_body: dict[str, Any]) -> None:
            with self._lock:
                progress.add()

        await self._work(job, count, progress)

    async def send(self, number: int, sent: int) -> None:
        """Enqueue one workflow."""
        await asyncio.to_thread(self._client.enqueue, _options(), timed_payload(number, sent))

    async def receive(self, job: Job, progress: Progress) -> None:
        """Handle workflows as they arrive."""

        def note(body: dict[str, Any]) -> None:
            with self._lock:
                progress.note(body["sent"])

        await self._work(job, note, progress)

    async def close(self) -> None:
        """Leave the connections to the end of the process."""

    def _prepare(self, job: Job) -> None:
        DBOS(config=_config(job))
        DBOS.launch()
        DBOS.register_queue(_QUEUE, worker_concurrency=_AT_ONCE, polling_interval_sec=_POLL_SECONDS)
        DBOS.destroy()

    def _publish(self, job: Job) -> None:
        for numbers in batches(job):
            if job.batch == 1:
                self._client.enqueue(_options(), payload(numbers[0]))
                continue
            with self._engine.begin() as connection:
                for number in numbers:
                    self._client.enqueue_in_transaction(connection, _options(), payload(number))

    async def _work(self, job: Job, workflow: Any, progress: Progress) -> None:
        DBOS(config=_config(job))
        DBOS.workflow(name=_WORKFLOW)(workflow)
        await asyncio.to_thread(DBOS.launch)
        progress.start_clock()
        await progress.completed()
        progress.stop_clock()
        # The end of the last workflows is written after their functions have returned.
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=10)


def _options() -> dict[str, Any]:
    return {"workflow_name": _WORKFLOW, "queue_name": _QUEUE}


def _config(job: Job) -> DBOSConfig:
    return {
        "name": _APPLICATION,
        "application_version": "1",
        "system_database_url": _url(job),
        "log_level": "ERROR",
    }


def _url(job: Job) -> str:
    parts = address_parts(job.dsn)
    return f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


if __name__ == "__main__":
    play(Dbos())
