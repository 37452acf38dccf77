"""One store with its database, couriers and workers as processes. A process that ends is replaced."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from uuid import NAMESPACE_URL, uuid5

import psycopg

from bench.chaos.faults import run_to_end
from bench.postgres import PrivateCluster
from bench.two_stores.application import HANDED, IN, RECEIVED, application
from kingdom.backends.kafka.courier_queue import CourierQueue
from kingdom.backends.postgres import PostgresBus, migrate
from kingdom.bus import Envelope
from kingdom.errors import Unavailable

KEYS = 100
_BATCH = 100
# A publisher waits while this many of its events are not applied, so that the kills hit all of them.
_AHEAD_MAX = 2000
_LOOK_SECONDS = 0.2
_COUNT = """
SELECT count(*) FROM (SELECT DISTINCT id, number FROM kingdom.record, jsonb_array_elements(doc->'numbers') AS number
                       WHERE kind = %s) AS different
"""
_NUMBERS = "SELECT id, doc->'numbers' FROM kingdom.record WHERE kind = %s"


class RealmStore:
    """A store under test. `name` is its application, and with a dot the prefix of its topics."""

    def __init__(self, name: str, other: str, servers: str, directory: Path, variant: str) -> None:
        self.name = name
        self.cluster = PrivateCluster(ignore_database_url=True)
        self.kills = 0
        self._count_at_kill = 0
        self._other = other
        self._directory = directory / name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._command = (sys.executable, "-m", "bench.two_stores.process", variant, str(directory))
        self._environment = {
            **os.environ,
            "KINGDOM_KAFKA_SERVERS": servers,
            "KINGDOM_KAFKA_PREFIX": f"{name}.",
            "KINGDOM_KAFKA_PARTITIONS": "4",
            "KINGDOM_APP": f"bench.two_stores.application:{name}",
        }
        self._dsn = ""

    def __enter__(self) -> Self:
        self._directory.mkdir()
        self.cluster.start()
        try:
            self._dsn = self.cluster.create_database(self.name)
            asyncio.run(migrate(self._dsn))
            self._environment["KINGDOM_DATABASE_URL"] = self._dsn
            work = ("bus", "work", "--stream", IN)
            for name, arguments in (("courier", ("role", "courier")), ("worker", work)):
                for number in (1, 2):
                    self._start(f"{name}-{number}", arguments)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.cluster.stop()

    @property
    def victims(self) -> Sequence[str]:
        """The processes that can be killed."""
        return [*self._processes, "database"]

    async def has_moved(self) -> bool:
        """Return whether events were applied since the last kill."""
        return await self.count() > self._count_at_kill

    async def kill(self, victim: str) -> None:
        """Kill a process or the database, and start it again."""
        self.kills, self._count_at_kill = self.kills + 1, await self.count()
        if victim == "database":
            await run_to_end(self._restart_database)
        else:
            self._processes[victim].send_signal(signal.SIGKILL)
            await run_to_end(self._processes[victim].wait)

    def replace_ended(self) -> None:
        """Start each ended process again, as a supervisor does."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._start(name, [str(word) for word in process.args][len(self._command) :])  # type: ignore[union-attr]

    async def publish(
        self, numbers: range, other: "RealmStore", *, script: dict[str, str] | None = None, kills: int = 0
    ) -> None:
        """Publish events for the other store, and repeat a publish that may have failed.

        The first event has the script. The other store has almost `kills` kills before the last event is published.
        """
        async with PostgresBus(self._dsn, application(self._other).topology, [RECEIVED]) as bus:
            for first in numbers[::_BATCH]:
                due_kills = first * kills // numbers.stop - 1
                while other.kills < due_kills or await other.count() < first - _AHEAD_MAX:  # noqa: ASYNC110 - of processes
                    await asyncio.sleep(_LOOK_SECONDS)
                batch = range(first, min(first + _BATCH, numbers.stop))
                await _publish(bus, [self._event(each, script if each == numbers.start else None) for each in batch])

    async def wait_until_sent(self) -> None:
        """Wait until a courier has reported all events as sent."""
        async with PostgresBus(self._dsn, application(self._other).topology, [RECEIVED]) as bus:
            queue = CourierQueue(bus)
            while True:
                with contextlib.suppress(Unavailable):
                    if not await queue.lag():
                        return
                await asyncio.sleep(_LOOK_SECONDS)

    async def count(self) -> int:
        """Return how many different events are applied here; 0 while the database does not answer."""
        try:
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                cursor = await connection.execute(_COUNT, [RECEIVED.name])
                return int((await cursor.fetchall())[0][0])
        except psycopg.OperationalError:
            return 0

    def received(self) -> dict[str, list[int]]:
        """Return the received numbers by key."""
        with psycopg.connect(self._dsn) as connection:
            return dict(connection.execute(_NUMBERS, [RECEIVED.name]).fetchall())

    def _event(self, number: int, script: dict[str, str] | None) -> Envelope:
        # The id is the same for each attempt, so a repeated publish is refused.
        event_id = uuid5(NAMESPACE_URL, f"{self.name}/{number}")
        payload = {"number": number, "script": script or {}}
        return Envelope(type=HANDED, payload=payload, partition_key=key_of(number), event_id=event_id)

    def _restart_database(self) -> None:
        self.cluster.crash()
        self.cluster.restart()

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._command, *arguments], env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def key_of(number: int) -> str:
    """Return the key of an event."""
    return f"key-{number % KEYS}"


async def _publish(bus: PostgresBus, events: Sequence[Envelope]) -> None:
    while True:
        try:
            await bus.publish(*events)
        except Unavailable:
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
