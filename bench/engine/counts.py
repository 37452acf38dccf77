"""Count the statements and buffers per Task on the server, while finished runs accumulate.

The counted runs run one after another. If several ran at once, their events would share transactions, by chance more or
fewer of them, and the counts would vary.

The timers of the engine and the start of the host are counted too. Three figures are reported separately: claims that
find nothing, whose number depends on the speed of the machine; BEGIN and COMMIT, which read and write nothing
themselves; and the round trips of all statements together.
"""

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import dict_row

from bench.engine.kingdom import CONNECTIONS, TASKS_PER_RUN, kingdom_at_work, start_runs, wait_until_completed
from bench.engine.stored import fill_with_finished_runs
from bench.explain import ExplainedBus
from bench.files.figures import Figures
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from kingdom.backends.postgres.connection import Call, Connection, Rows
from kingdom.backends.postgres.transaction import PostgresTransaction
from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.ledger import EFFECTS
from kingdom.bus.record import RecordQuery
from kingdom.bus.sequence import SEQUENCES
from kingdom.workflow.records import KINDS, WORKFLOWS
from kingdom.workflow.streams import TOPOLOGY

# The bounds: the statements of a Task, and the cost with many stored runs, relative to the cost with few.
STATEMENTS_LIMIT = 28
GROWTH_LIMIT = 1.2
# The bench vacuums before a measurement, so the server never does it during one.
SETTINGS = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
_TEMPLATE = "engine_template"
_MODELS = 10
_CLAIMS = {"claim", "claim_ordered"}
_TRANSACTION_COMMANDS = ("BEGIN", "COMMIT")


class CountingBus(ExplainedBus):
    """Counts the cost of its statements by name, its empty claims, BEGIN and COMMIT, and its round trips."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, TOPOLOGY, [EFFECTS, SEQUENCES, *KINDS], connections=CONNECTIONS)
        self.statements: Counter[str] = Counter()
        self.buffers: Counter[str] = Counter()
        self.empty_claims: Counter[str] = Counter()
        self.transaction_commands: Counter[str] = Counter()
        self.round_trips: Counter[str] = Counter()

    async def _configure(self, connection: Connection) -> None:
        await super()._configure(connection)
        run = connection.run

        async def run_and_count(*calls: Call, commit_each: bool = False) -> list[Rows]:
            self.round_trips["all"] += 1
            self.transaction_commands.update(sql for sql, _ in calls if sql.startswith(_TRANSACTION_COMMANDS))
            return await run(*calls, commit_each=commit_each)

        connection.run = run_and_count  # type: ignore[method-assign]  # only this connection counts

    def _note(self, notice: Diagnostic) -> None:
        super()._note(notice)
        for plan in self.take():
            if plan.name in _CLAIMS and not plan.tree["Actual Rows"]:
                self.empty_claims[plan.name] += 1
                continue
            self.statements[plan.name or "other"] += 1
            self.buffers[plan.name or "other"] += plan.buffers


class ScanningBus(CountingBus):
    """Scans all runs at every step, although it knows which run it needs."""

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction and scan all runs first."""
        async with super().transaction(hold, optimistic=optimistic) as transaction:
            if hold:
                await transaction.find(RecordQuery(kind=WORKFLOWS.name, limit=1_000_000))
            yield transaction


VARIANTS: Mapping[str, type[CountingBus]] = {"scan": ScanningBus}


async def measure_counts(
    cluster: PrivateCluster, figures: Figures, *, stored: Sequence[int], runs: int, variant: str | None, bounded: bool
) -> None:
    """Record the cost of a Task at every size, relative to the smallest size."""
    await _prepare(cluster.create_database(_TEMPLATE))
    found = [(size, await _count(cluster, size, runs, variant)) for size in stored]
    figures.facts["per task"] = {
        f"{size:,} stored": {
            "statements": _by_name(bus.statements, runs),
            "buffers": _by_name(bus.buffers, runs),
        }
        for size, bus in found
    }
    for what in ("statements", "buffers"):
        totals = [getattr(bus, what).total() for _, bus in found]
        for (size, _), total in zip(found, totals, strict=True):
            limit = STATEMENTS_LIMIT if bounded and what == "statements" else None
            figures.note(f"{what} per Task, {size:,} stored runs", total / (runs * TASKS_PER_RUN), at_most=limit)
        figures.note(f"{what} per Task, growth", max(totals) / totals[0], at_most=GROWTH_LIMIT)
    for apart, of in (
        ("empty claims", "empty_claims"),
        ("BEGIN and COMMIT", "transaction_commands"),
        ("round trips", "round_trips"),
    ):
        most = max(getattr(bus, of).total() for _, bus in found)
        figures.note(f"{apart} per Task, at most", most / (runs * TASKS_PER_RUN))


async def _prepare(dsn: str) -> None:
    """Create the template store with a few real runs."""
    await migrate(dsn)
    await _run(CountingBus(dsn), dsn, 1, at_once=_MODELS)


async def _count(cluster: PrivateCluster, size: int, runs: int, variant: str | None) -> CountingBus:
    name = f"engine_{size}"
    dsn = cluster.create_database(name, template=_TEMPLATE)
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        fill_with_finished_runs(connection, size)
    bus = VARIANTS[variant](dsn) if variant else CountingBus(dsn)
    await _run(bus, dsn, runs, at_once=1)
    cluster.drop_database(name)
    return bus


async def _run(bus: CountingBus, dsn: str, times: int, *, at_once: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kingdom-bench-") as directory:
        async with bus, kingdom_at_work(bus, dsn, Path(directory)):
            for _ in range(times):
                await start_runs(bus, at_once)
                await wait_until_completed(dsn)


def _by_name(counts: Counter[str], runs: int) -> dict[str, Any]:
    return {name: round(count / (runs * TASKS_PER_RUN), 2) for name, count in counts.most_common()}
