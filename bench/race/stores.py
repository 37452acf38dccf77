"""Where the events of a turn are kept: a new database per turn on one private PostgreSQL."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg

from bench.postgres import PrivateCluster
from bench.race.clocks import processor_seconds
from bench.race.player import Job
from bench.race.processes import run_to_end, started
from bench.race.sides import BATCHES, Side

# No checkpoint by time or size, so that no turn pays for the pages of another one.
SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}


class Store(ABC):
    """Gives each turn the same start, and knows the processor time of its server."""

    @abstractmethod
    def place(self, side: Side, python: Path, *, waiting: int) -> AbstractContextManager[str]:
        """Yield the address for one turn, with this many events waiting there."""

    @abstractmethod
    def processor_seconds(self) -> float:
        """Return the processor time that the server has used so far."""

    @abstractmethod
    def count_waiting(self, side: Side, address: str) -> int | None:
        """Return how many events are not handled yet, or None if that is unknown."""


class PostgresStore(Store):
    """Databases that are copied from templates, one empty and one filled template per kind of schema."""

    def __init__(self, cluster: PrivateCluster) -> None:
        assert cluster.pid is not None
        self._cluster = cluster
        self._pid = cluster.pid
        self._templates: set[str] = set()
        self._turns = 0

    @contextmanager
    def place(self, side: Side, python: Path, *, waiting: int) -> Iterator[str]:
        """Yield a copy of a template, and drop it afterwards, so that its vacuum does not disturb later turns."""
        template = self._template(side, python, waiting)
        self._turns += 1
        name = f"turn_{self._turns}"
        try:
            yield self._cluster.create_database(name, template=template)
        finally:
            self._cluster.drop_database(name)

    def processor_seconds(self) -> float:
        """Return the processor time of all processes of the server."""
        return processor_seconds(self._pid)

    def count_waiting(self, side: Side, address: str) -> int | None:
        """Return how many events wait in the database."""
        with psycopg.connect(address) as connection:
            row = connection.execute(side.waiting).fetchone()
        return None if row is None else int(row[0])

    def _template(self, side: Side, python: Path, waiting: int) -> str:
        name = f"{side.store}_{waiting}"
        if name in self._templates:
            return name
        if waiting:
            address = self._cluster.create_database(name, template=self._template(side, python, 0))
            fill(side, python, address, waiting)
        else:
            address = self._cluster.create_database(name)
            prepare(side, python, address)
        with psycopg.connect(address, autocommit=True) as connection:
            # Without statistics, some products choose plans for an empty table.
            connection.execute("VACUUM (FREEZE, ANALYZE)")
        self._templates.add(name)
        return name


def prepare(side: Side, python: Path, address: str) -> None:
    """Create what a side needs at an address."""
    run_to_end(python, side.module, Job(role="prepare", dsn=address, events=0, options=dict(side.options)))


def fill(side: Side, python: Path, address: str, events: int) -> None:
    """Publish events that a later turn drains."""
    batch = max(BATCHES[column] for column in side.columns if column in BATCHES)
    job = Job(role="publish", dsn=address, events=events, batch=batch, options=dict(side.options))
    with started(python, side.module, [job]) as (client,):
        client.start()
        client.report()
        client.finish()
