"""`python -m bench.kafka`: a stream on Kafka beside an ordered stream in PostgreSQL, in one interleaved run.

It exits 0 only if every bound holds. The last line has the figures as JSON.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kafka.broker import PrivateKafka
from bench.kafka.figures import Figures, Turn
from bench.kafka.relay import buffers_by_pinned_ticks, buffers_by_retained
from bench.kafka.turns import STREAM, at_work, open_bus, ping, take_turn
from bench.postgres import PrivateCluster
from bench.servers import exit_on_sigterm
from kingdom.backends.kafka import Brokers, Courier
from kingdom.backends.postgres import migrate
from kingdom.bus import Dispatcher, Event, Transaction, Worker
from kingdom.log_output import configure_logs

_PARTITIONS = 12
_EVENTS_PER_SECOND = 100
_TEMPLATE = "template"
# Broken variants: a tick reads the whole table, or each tick updates the row of the courier.
SCAN, REPORTS_EACH_TICK = "scan", "reports-each-tick"
# Nothing but the bench vacuums, so that it never happens during a measurement.
_SETTINGS = {"autovacuum": "off", "max_wal_size": "4GB", "checkpoint_timeout": "1h"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The sizes of a run. A quick one has too few events for bounds of time."""

    rounds: int
    events: int
    retained: tuple[int, ...]
    pinned_ticks: int
    latency_events: int
    checks_times: bool


_DEFAULT = _Scale(
    rounds=3,
    events=20_000,
    retained=(10_000, 100_000, 1_000_000),
    pinned_ticks=300,
    latency_events=1000,
    checks_times=True,
)
_QUICK = _Scale(rounds=1, events=500, retained=(1000, 20_000), pinned_ticks=100, latency_events=50, checks_times=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report and check the bounds."""
    options = _parse(arguments)
    configure_logs(json=True, level=logging.ERROR)
    scale, started = _QUICK if options.quick else _DEFAULT, time.monotonic()
    with PrivateCluster(shared_buffers="512MB", settings=_SETTINGS) as cluster, PrivateKafka() as kafka:
        asyncio.run(migrate(cluster.create_database(_TEMPLATE)))
        figures = asyncio.run(_measure(cluster, kafka, scale, options.variant))
    bounds = [*figures.count_bounds(), *(figures.time_bounds() if scale.checks_times else [])]
    broken = [bound.text for bound in bounds if not bound.holds]
    for words in broken:
        print(f"bound not kept: {words}", file=sys.stderr)
    seconds = round(time.monotonic() - started)
    text = json.dumps({"ok": not broken, **figures.to_json(), "broken": broken, "seconds": seconds})
    if options.json == "-":
        print(text)
    else:
        Path(options.json).write_text(text + "\n")
    return 1 if broken else 0


async def _measure(cluster: PrivateCluster, kafka: PrivateKafka, scale: _Scale, variant: str | None) -> Figures:
    ordered: list[Turn] = []
    carried: list[Turn] = []
    for number in range(scale.rounds):
        brokers = _brokers(kafka, f"round{number}.")
        ordered.append(await take_turn(cluster, _database(cluster, f"ordered_{number}"), None, scale.events))
        carried.append(await take_turn(cluster, _database(cluster, f"kafka_{number}"), brokers, scale.events))
    brokers = _brokers(kafka, "relay.")
    retained, pinned = _database(cluster, "retained"), _database(cluster, "pinned")
    async with open_bus(retained, brokers) as bus:
        by_retained = await buffers_by_retained(retained, bus, scale.retained, scan=variant == SCAN)
    async with open_bus(pinned, brokers) as bus:
        reports_each = variant == REPORTS_EACH_TICK
        by_pinned_ticks = await buffers_by_pinned_ticks(pinned, bus, scale.pinned_ticks, reports_each=reports_each)
    return Figures(
        ordered=ordered,
        kafka=carried,
        buffers_by_retained=by_retained,
        buffers_by_pinned_ticks=by_pinned_ticks,
        latencies_ms=await _latencies(_database(cluster, "latency"), _brokers(kafka, "latency."), scale.latency_events),
    )


async def _latencies(dsn: str, brokers: Brokers, events: int) -> list[float]:
    """Return the times in ms from commits to handlers, for events that come at a steady rate."""
    committed: dict[int, float] = {}
    handled: dict[int, float] = {}
    first, last = asyncio.Event(), asyncio.Event()

    async def note(event: Event[Any], _transaction: Transaction) -> None:
        number = event.payload["number"]
        handled.setdefault(number, time.monotonic())
        first.set()
        if len(handled) > events:
            last.set()

    dispatcher = Dispatcher()
    dispatcher.reaction("Ping")(note)
    async with (
        open_bus(dsn, brokers) as bus,
        at_work(Courier(bus, brokers)),
        at_work(Worker(bus, dispatcher, [STREAM])),
    ):
        await bus.publish(ping(0))
        # Topics and groups exist after the first event.
        await first.wait()
        begun = time.monotonic()
        for number in range(1, events + 1):
            await asyncio.sleep(max(0.0, begun + number / _EVENTS_PER_SECOND - time.monotonic()))
            await bus.publish(ping(number))
            committed[number] = time.monotonic()
        await last.wait()
    return [max(0.0, handled[number] - at) * 1000 for number, at in committed.items()]


def _database(cluster: PrivateCluster, name: str) -> str:
    return cluster.create_database(name, template=_TEMPLATE)


def _brokers(kafka: PrivateKafka, prefix: str) -> Brokers:
    return Brokers(servers=kafka.servers, prefix=prefix, partitions=_PARTITIONS)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use small sizes, and check only counts")
    parser.add_argument(
        "--variant", choices=(SCAN, REPORTS_EACH_TICK), help="run a broken variant, which a bound must detect"
    )
    parser.add_argument("--json", default="-", metavar="FILE", help="the file for the figures; - prints them (default)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
