"""Measure durable steps per second: the engine and dbos take turns on one PostgreSQL, each in one process."""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import psutil

from bench.engine.kingdom import STEPS_PER_RUN
from bench.engine.process_times import ProcessTimes
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate

# The bound: the speed of the engine as a multiple of dbos.
AHEAD_OF_DBOS = 1.6
KINGDOM, DBOS = "kingdom", "dbos"
_PROGRAMS = {KINGDOM: "bench.engine.kingdom", DBOS: "bench.engine.peer"}
_PATIENCE_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Pace:
    """Durable steps per second, and the processor time per step in the process and on the server."""

    steps_per_second: float
    client_ms: float
    server_ms: float


def measure_speed(
    cluster: PrivateCluster,
    figures: Figures,
    *,
    runs: int,
    rounds: int,
    with_dbos: bool,
    bounded: bool,
    say: Callable[[str], None],
) -> None:
    """Run the engine and dbos in every round. The bound applies to the median of the ratios of the rounds."""
    found: dict[str, list[Pace]] = {}
    # On a busy machine, the side with more threads gets more processor time, so the load belongs to the result.
    figures.facts["load before"] = round(os.getloadavg()[0], 1)
    for number in range(rounds):
        turns = [KINGDOM, DBOS] if with_dbos else [KINGDOM]
        # Rotate the order, so that no contestant is always first.
        for who in reversed(turns) if number % 2 else turns:
            pace = _measure_pace(cluster, who, f"{who}_{number}", runs)
            say(f"{who}: {pace}")
            found.setdefault(who, []).append(pace)
    rates = {who: [pace.steps_per_second for pace in paces] for who, paces in found.items()}
    figures.facts["durable steps per second"] = {who: [round(rate) for rate in each] for who, each in rates.items()}
    for who, paces in found.items():
        figures.note(f"durable steps per second, {who}", statistics.median(rates[who]))
        figures.note(f"processor ms per step in the process, {who}", statistics.median(p.client_ms for p in paces))
        figures.note(f"processor ms per step on the server, {who}", statistics.median(p.server_ms for p in paces))
    if with_dbos:
        multiple = statistics.median(ours / theirs for ours, theirs in zip(rates[KINGDOM], rates[DBOS], strict=True))
        figures.note("durable steps, multiple of dbos", multiple, at_least=AHEAD_OF_DBOS if bounded else None)


def _measure_pace(cluster: PrivateCluster, who: str, database: str, runs: int) -> Pace:
    """Run the engine or dbos in its own process and database."""
    dsn = cluster.create_database(database)
    if who == KINGDOM:
        asyncio.run(migrate(dsn))
    server_began = _server_seconds(cluster)
    command = [sys.executable, "-m", _PROGRAMS[who], dsn, str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
    # Dropping the database waits until its sessions have ended. Only then has the server counted their processor time.
    cluster.drop_database(database)
    if done.returncode:
        raise RuntimeError(f"{who} did not run:\n{done.stderr[-4000:]}")
    times = msgspec.json.decode(done.stdout.splitlines()[-1], type=ProcessTimes)
    steps = runs * STEPS_PER_RUN
    server_seconds = _server_seconds(cluster) - server_began
    return Pace(
        steps_per_second=round(steps / times.seconds, 1),
        client_ms=round(times.cpu_seconds / steps * 1000, 3),
        server_ms=round(server_seconds / steps * 1000, 3),
    )


def _server_seconds(cluster: PrivateCluster) -> float:
    """Return the processor time of ended server processes; zero for the server of DATABASE_URL."""
    if cluster.pid is None:
        return 0.0
    times = psutil.Process(cluster.pid).cpu_times()
    return float(times.children_user + times.children_system)
