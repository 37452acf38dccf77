"""The environment of a measurement: temporary databases, and buses that report their plans."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.explain import ExplainedBus
from bench.fill import Connection
from bench.growth.figures import Figures
from bench.growth.variants import Variant
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from kingdom.bus import Done, Stream, Topology

BATCH = 50
TEMPLATE = "growth"
LINE = "line"
# Long enough that no lease expires during a measurement on a slow machine.
LEASE = timedelta(minutes=30)
TOPOLOGY = Topology(
    [
        *(Stream(name=f"stream-{number}", lease=LEASE) for number in range(4)),
        Stream(name=LINE, ordered=True, lease=LEASE),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run: events pending, events of a stream with a retrying key, and waiting events of ordered keys.

    `pinned_events` are handled in some `phases` while a transaction stays open. `crowd` is a number of workers.
    """

    pending: tuple[int, ...]
    retrying: tuple[int, ...]
    followers: tuple[int, ...]
    pinned_events: int
    phases: int
    crowd: int = 64


DEFAULT = Scale(
    pending=(10_000, 100_000, 1_000_000),
    retrying=(10_000, 100_000, 1_000_000),
    followers=(5_000, 50_000, 500_000),
    pinned_events=100_000,
    phases=10,
)
FULL = Scale(
    pending=(*DEFAULT.pending, 10_000_000),
    retrying=DEFAULT.retrying,
    followers=DEFAULT.followers,
    pinned_events=DEFAULT.pinned_events,
    phases=DEFAULT.phases,
)
QUICK = Scale(
    pending=(4_000, 8_000),
    retrying=(4_000, 12_000),
    followers=(2_000, 20_000),
    pinned_events=3_000,
    phases=3,
    crowd=16,
)


class Lab:
    """A cluster, the sizes of the run, and the figures so far."""

    def __init__(
        self,
        cluster: PrivateCluster,
        scale: Scale,
        *,
        variant: Variant | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.scale = scale
        self.figures = Figures()
        self.say = say
        self._cluster = cluster
        self._variant = variant
        self._made = 0

    def prepare(self) -> None:
        """Create the template of all other databases."""
        asyncio.run(migrate(self._cluster.create_database(TEMPLATE)))

    @contextmanager
    def database(self) -> Iterator[tuple[str, Connection]]:
        """Yield a new database and a connection to fill it."""
        self._made += 1
        name = f"growth_{self._made}"
        dsn = self._cluster.create_database(name, template=TEMPLATE)
        try:
            with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
                yield dsn, connection
        finally:
            self._cluster.drop_database(name)

    @asynccontextmanager
    async def bus(self, dsn: str) -> AsyncIterator[ExplainedBus]:
        """Yield a bus with one connection, so that its plans come in the order of its calls."""
        async with ExplainedBus(dsn, TOPOLOGY, connections=1) as bus:
            if self._variant:
                bus.queries = self._variant.applied(bus.queries)
            yield bus


@contextmanager
def pinned(dsn: str) -> Iterator[None]:
    """Keep a transaction open, so that the server cannot remove dead rows: xmin is pinned."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT FROM kingdom.outbox_event LIMIT 1")
        yield


async def settle(bus: ExplainedBus, deliveries: Any) -> None:
    """Settle deliveries in one transaction, like a reaction without other changes."""
    async with bus.transaction(hold=deliveries) as transaction:
        for delivery in transaction.held:
            await transaction.settle(delivery, Done())
