"""The process of a side: it prepares itself, waits for the start, works, and reports its clocks.

Peers import this module in environments of their own, so it uses the standard library only.
"""

import asyncio
import json
import mmap
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVENTS_PER_SECOND = 50
_POLL_SECONDS = 0.01
# A receiver listens before the first event is sent.
_HEAD_START_SECONDS = 1.0
_COUNT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of one process. `events` counts all events of the turn, not those of this process."""

    role: str
    dsn: str
    events: int
    batch: int = 1
    counts: str = ""
    worker: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class Contestant(ABC):
    """The work of one side in one process. Only `publish`, `drain`, `record`, `send` and `receive` are measured."""

    @abstractmethod
    async def prepare(self, job: Job) -> None:
        """Create the schema or the stream that all later turns need."""

    @abstractmethod
    async def open(self, job: Job) -> None:
        """Connect, and do everything else that a long-lived process does only once."""

    @abstractmethod
    async def publish(self, job: Job) -> None:
        """Publish all events, `batch` of them per transaction."""

    @abstractmethod
    async def drain(self, job: Job, progress: "Progress") -> None:
        """Handle events until all workers together have handled all of them."""

    async def record(self, job: Job, progress: "Progress") -> None:
        """Drain, and write one record per event in the transaction that settles the event."""
        raise NotImplementedError

    @abstractmethod
    async def send(self, number: int, sent: int) -> None:
        """Publish one event that carries the time at which it was sent."""

    @abstractmethod
    async def receive(self, job: Job, progress: "Progress") -> None:
        """Handle events as soon as they arrive, and note the latency of each."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


class Progress:
    """How many events each worker of a turn has handled, in a file that all of them map."""

    def __init__(self, job: Job) -> None:
        self._total = job.events
        self._worker = job.worker
        self.latencies: list[float] = []
        self._began = self._cpu_began = self._cpu_ended = 0.0
        self._ended: float | None = None
        if job.counts:
            with Path(job.counts).open("r+b") as file:
                self._map: mmap.mmap | bytearray = mmap.mmap(file.fileno(), 0)
        else:
            self._map = bytearray(_COUNT_BYTES)
        self._counts = memoryview(self._map).cast("Q")

    def start_clock(self) -> None:
        """Start measuring. A library that starts only together with its work calls this again after its start."""
        self._began, self._cpu_began = time.monotonic(), time.process_time()

    def stop_clock(self) -> None:
        """Stop measuring. A library that ends slowly calls this before its end."""
        if self._ended is None:
            self._ended, self._cpu_ended = time.monotonic(), time.process_time()

    def to_report(self, events: int) -> dict[str, Any]:
        """Return the clocks with the number of events and their latencies."""
        clocks = {"began": self._began, "ended": self._ended, "cpu": self._cpu_ended - self._cpu_began}
        return {**clocks, "events": events, "latencies": self.latencies}

    def add(self, events: int = 1) -> None:
        """Count events that this worker has handled."""
        self._counts[self._worker] += events

    def note(self, sent: int) -> None:
        """Count one event, and keep the milliseconds since it was sent."""
        self.latencies.append((time.monotonic_ns() - sent) / 1e6)
        self.add()

    @property
    def own(self) -> int:
        """Return how many events this worker has handled."""
        return int(self._counts[self._worker])

    @property
    def is_complete(self) -> bool:
        """Return whether all workers together have handled everything."""
        return sum(self._counts) >= self._total

    async def completed(self) -> None:
        """Wait until everything is handled."""
        while not self.is_complete:  # noqa: ASYNC110 - other processes change the counts, without any event
            await asyncio.sleep(_POLL_SECONDS)


def create_counts(path: Path, workers: int) -> None:
    """Create the file for the counts of some workers."""
    path.write_bytes(bytes(_COUNT_BYTES * workers))


def payload(number: int) -> dict[str, Any]:
    """Return about 200 bytes, the size of a small event."""
    return {"number": number, "text": "x" * 170}


def timed_payload(number: int, sent: int) -> dict[str, Any]:
    """Return a payload that carries the time at which it was sent."""
    return {**payload(number), "sent": sent}


def address_parts(dsn: str) -> dict[str, str]:
    """Return the parts of a conninfo, whose values have no spaces."""
    return dict(part.split("=", 1) for part in dsn.split())


def batches(job: Job) -> Iterator[range]:
    """Yield the numbers of the events of each transaction."""
    for start in range(0, job.events, job.batch):
        yield range(start, min(start + job.batch, job.events))


def play(contestant: Contestant, loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Run the job of the command line."""
    job = Job(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_play(contestant, job))
    sys.stdout.flush()
    # Some libraries leave threads that end slowly, and there is nothing to save.
    os._exit(0)


async def _play(contestant: Contestant, job: Job) -> None:
    if job.role == "prepare":
        await contestant.prepare(job)
        return
    progress = Progress(job)
    await contestant.open(job)
    _say({"ready": True})
    # Blocking the event loop is fine here, because nothing runs before the start.
    sys.stdin.readline()
    progress.start_clock()
    await _work(contestant, job, progress)
    progress.stop_clock()
    _say(progress.to_report(job.events if job.role in ("publish", "send") else progress.own))
    # The sessions stay until the parent has read the clocks of the server.
    sys.stdin.readline()
    await contestant.close()


async def _work(contestant: Contestant, job: Job, progress: Progress) -> None:
    match job.role:
        case "publish":
            await contestant.publish(job)
        case "drain":
            await contestant.drain(job, progress)
        case "record":
            await contestant.record(job, progress)
        case "send":
            async for number in _paced(job.events):
                await contestant.send(number, time.monotonic_ns())
        case "receive":
            await contestant.receive(job, progress)
        case _:
            raise ValueError(f"unknown role {job.role}")


async def _paced(events: int) -> AsyncIterator[int]:
    """Yield numbers at a constant rate, after a head start for the receiver."""
    began = time.monotonic() + _HEAD_START_SECONDS
    for number in range(events):
        await asyncio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic()))
        yield number


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)
