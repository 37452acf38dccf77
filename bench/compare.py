"""Compare the bus with a bare psycopg loop on the same table, in one interleaved run.

The bare loop claims and archives with the best known statements, without leases, fences, retries or handlers. No client
of this table can be faster.
"""

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from rich.console import Console
from rich.table import Table

from bench.postgres import PrivateCluster
from kingdom.backends.postgres import PostgresBus, migrate
from kingdom.bus import Dispatcher, Envelope, Event, Stream, Topology, Transaction, Worker
from kingdom.log_output import configure_logs

BATCH = 100
# The share of the bare loop's rate that the bus must reach. A lower share is a regression, not noise.
BOUNDS = {"publish one": 0.25, "publish 100": 0.25, "drain": 0.2}
_STREAM = "compare"
_INSERT = (
    "INSERT INTO kingdom.outbox_event (event_id, stream, event_type, occurred_at, trace_id, payload_json)"
    " SELECT gen_random_uuid(), 'compare', 'Ping', now(), 'trace', x.payload"
    " FROM jsonb_to_recordset(%s::jsonb) AS x(payload jsonb)"
)
_CLAIM = (
    "UPDATE kingdom.outbox_event SET status = 'PROCESSING', attempt_count = attempt_count + 1 WHERE id = ANY(ARRAY("
    "SELECT id FROM kingdom.outbox_event WHERE stream = 'compare' AND processed_at IS NULL AND status = 'PENDING'"
    " AND next_retry_at <= now() ORDER BY next_retry_at, id LIMIT 100 FOR UPDATE SKIP LOCKED)) RETURNING *"
)
_DONE = (
    "WITH d AS (DELETE FROM kingdom.outbox_event WHERE id = ANY(%s) RETURNING *)"
    " INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id,"
    " owner_id, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts,"
    " crash_count, lease_token, created_at) SELECT id, event_id, stream, event_type, schema_version, occurred_at,"
    " trace_id, owner_id, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,"
    " max_attempts, crash_count, lease_token, created_at FROM d"
)


def payload(number: int) -> dict[str, Any]:
    """Return about 200 bytes, the size of a small event."""
    return {"number": number, "text": "x" * 170}


class Bare:
    """A loop that only talks to the database."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row, prepare_threshold=1)

    def publish_one(self, events: int) -> None:
        """Insert one row per transaction."""
        for number in range(events):
            self._connection.execute(_INSERT, (json.dumps([{"payload": payload(number)}]),))

    def publish_100(self, events: int) -> None:
        """Insert a hundred rows per transaction."""
        for start in range(0, events, BATCH):
            rows = [{"payload": payload(number)} for number in range(start, start + BATCH)]
            self._connection.execute(_INSERT, (json.dumps(rows),))

    def drain(self, events: int) -> None:
        """Claim and archive until nothing is left."""
        done = 0
        while done < events:
            rows = self._connection.execute(_CLAIM).fetchall()
            self._connection.execute(_DONE, ([row["id"] for row in rows],))
            done += len(rows)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Kingdom:
    """The product as a user runs it: leases, fences, records, metrics, one worker."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._topology = Topology([Stream(name=_STREAM, subscribes=frozenset({"Ping"}))])

    def publish_one(self, events: int) -> None:
        """Publish one event per transaction."""
        asyncio.run(self._publish(events, 1))

    def publish_100(self, events: int) -> None:
        """Publish a hundred events per transaction."""
        asyncio.run(self._publish(events, BATCH))

    def drain(self, events: int) -> None:
        """Handle everything with one worker."""
        asyncio.run(self._drain(events))

    async def _publish(self, events: int, size: int) -> None:
        async with PostgresBus(self._dsn, self._topology) as bus:
            for start in range(0, events, size):
                batch = [Envelope(type="Ping", payload=payload(n)) for n in range(start, start + size)]
                await bus.publish(*batch)

    async def _drain(self, events: int) -> None:
        dispatcher, left = Dispatcher(), events

        @dispatcher.reaction("Ping")
        async def pong(_event: Event[Any], _transaction: Transaction) -> None:
            nonlocal left
            left -= 1
            if not left:
                worker.stop()

        async with PostgresBus(self._dsn, self._topology) as bus:
            worker = Worker(bus, dispatcher, [_STREAM])
            await worker.run()


def measure(dsn: str, *, events: int, singles: int, rounds: int) -> dict[str, dict[str, float]]:
    """Run the bare loop and the bus in turns, and return the median rate of each."""
    rates: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, side in (("bare", Bare(dsn)), ("kingdom", Kingdom(dsn))):
            steps: list[tuple[str, Callable[[int], None], int]] = [
                ("publish one", side.publish_one, singles),
                ("publish 100", side.publish_100, events),
                ("drain", side.drain, events + singles),
            ]
            for step, run, count in steps:
                started = time.perf_counter()
                run(count)
                rate = count / (time.perf_counter() - started)
                rates.setdefault(step, {}).setdefault(name, []).append(rate)
                print(f"{name}: {step} {rate:,.0f}/s", file=sys.stderr)
            if isinstance(side, Bare):
                side.close()
    return {step: {name: statistics.median(found) for name, found in by.items()} for step, by in rates.items()}


def main() -> int:
    """Measure, print, and fail if the bus is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", default="-", help="the file for the figures; - prints them last")
    parser.add_argument("--events", type=int, default=20_000, help="the number of events per round (default 20000)")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds (default 3)")
    parser.add_argument("--demand", type=float, default=1.0, help="multiply every bound; above 1 is stricter")
    arguments = parser.parse_args()
    configure_logs(json=True, level=logging.ERROR)
    with PrivateCluster(fsync=True, shared_buffers="1GB") as cluster:
        dsn = cluster.create_database("compare")
        asyncio.run(migrate(dsn))
        singles = max(arguments.events // 20, 100)
        rates = measure(dsn, events=arguments.events, singles=singles, rounds=arguments.rounds)
    table = Table("step", "bare psycopg /s", "kingdom /s", "share", "bound", title="the bus beside a bare loop")
    figures: dict[str, Any] = {"rates": rates, "shares": {}}
    failed = []
    for step, by in rates.items():
        share, bound = by["kingdom"] / by["bare"], BOUNDS[step] * arguments.demand
        figures["shares"][step] = round(share, 3)
        table.add_row(step, f"{by['bare']:,.0f}", f"{by['kingdom']:,.0f}", f"{share:.2f}", f"{bound:.2f}")
        if share < bound:
            failed.append(step)
    Console().print(table)
    figures["failed"] = failed
    line = json.dumps(figures)
    if arguments.json == "-":
        print(line)
    else:
        Path(arguments.json).write_text(line + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
