"""Couriers and workers as processes that are killed, on three brokers of which one is killed too."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kafka.broker import PrivateKafka
from kingdom.backends.kafka import Brokers
from kingdom.backends.postgres import PostgresBus
from tests.integration.kafka.shop import app, placed
from tests.integration.kafka.topics import committed_messages
from tests.integration.running import eventually, rows

pytestmark = pytest.mark.kafka
KEYS = [f"key-{number}" for number in range(20)]
ROUNDS = 12
EVENTS_OF_A_ROUND = 20
PREFIX = "kingdom."


class Processes:
    """Two couriers and two workers. A killed process is replaced at once."""

    def __init__(self, dsn: str, servers: str, directory: Path) -> None:
        self._environment = {
            **os.environ,
            "KINGDOM_DATABASE_URL": dsn,
            "KINGDOM_KAFKA_SERVERS": servers,
            "KINGDOM_KAFKA_PARTITIONS": "4",
            "KINGDOM_APP": "tests.integration.kafka.shop:app",
        }
        self._directory = directory
        self._commands = {
            "courier-1": ("role", "courier"),
            "courier-2": ("role", "courier"),
            "worker-1": ("bus", "work"),
            "worker-2": ("bus", "work"),
        }
        self._running = {name: self._start(name) for name in self._commands}

    def kill(self, name: str) -> None:
        process = self._running[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._running[name] = self._start(name)

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kingdom", *self._commands[name]]
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)


@pytest.fixture
def three() -> Iterator[PrivateKafka]:
    with PrivateKafka(3) as cluster:
        yield cluster


async def test_every_event_is_applied_once_and_in_order_while_processes_and_brokers_are_killed(
    dsn: str, three: PrivateKafka, tmp_path: Path
) -> None:
    chance = random.Random(23)
    processes = Processes(dsn, three.servers, tmp_path)
    try:
        async with PostgresBus(dsn, app.topology, app.kinds) as bus:
            for round_number in range(ROUNDS):
                before = await count_applied(bus)
                first = round_number * EVENTS_OF_A_ROUND
                numbers = range(first, first + EVENTS_OF_A_ROUND)
                await asyncio.gather(*(publish(bus, key, numbers) for key in KEYS))
                # Kill while the events of this round are being applied.
                await until_applied(bus, before + 1)
                processes.kill(chance.choice(processes.names))
                if round_number == ROUNDS // 2:
                    three.kill(2)
                    three.restart(2)
            expected = list(range(ROUNDS * EVENTS_OF_A_ROUND))
            await until_applied(bus, len(KEYS) * len(expected))
            found = await rows(bus, "SELECT id, doc->'numbers' AS numbers FROM kingdom.record WHERE kind = 'shelf'")
            assert {row["id"]: row["numbers"] for row in found} == dict.fromkeys(KEYS, expected)
        brokers = Brokers(servers=three.servers, prefix=PREFIX)
        sent = Counter(message.key() for message in committed_messages(brokers, "shop"))
        assert sent == dict.fromkeys((key.encode() for key in KEYS), len(expected))
    finally:
        processes.stop()


async def publish(bus: PostgresBus, key: str, numbers: range) -> None:
    for number in numbers:
        await bus.publish(placed(number, key))


async def count_applied(bus: PostgresBus) -> int:
    (row,) = await rows(bus, "SELECT sum(jsonb_array_length(doc->'numbers')) AS n FROM kingdom.record")
    return int(row["n"] or 0)


async def until_applied(bus: PostgresBus, count: int) -> None:
    async def applied() -> bool:
        return await count_applied(bus) >= count

    await eventually(applied)
