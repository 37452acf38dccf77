"""The composition root: from a URL to a running bus. The only module that names a backend."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from kingdom.backends import postgres
from kingdom.bus.ledger import EFFECTS
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.bus.throwaway import ThrowawayStore
from kingdom.errors import Misconfigured
from kingdom.settings import DEFAULT_SCHEMA

_POSTGRES_SCHEMES = ("postgresql", "postgres")
_FORM = "use postgresql://user@host/database"
_IDLE_LIMIT = timedelta(seconds=30)


@asynccontextmanager
async def open_bus(
    url: str,
    topology: Topology,
    kinds: Sequence[RecordKind] = (),
    *,
    schema: str = DEFAULT_SCHEMA,
    connections: int = 8,
    idle_limit: timedelta = _IDLE_LIMIT,
    through_pgbouncer: bool = False,
    listen_url: str | None = None,
) -> AsyncIterator[Bus]:
    """Open the bus that a URL names; the ledger of effects is always among its kinds."""
    _check(url)
    async with postgres.PostgresBus(
        url,
        topology,
        [EFFECTS, *kinds],
        schema=schema,
        connections=connections,
        idle_limit=idle_limit,
        through_pgbouncer=through_pgbouncer,
        listen_dsn=listen_url,
    ) as bus:
        yield bus


def throwaway_store(url: str, schema: str) -> ThrowawayStore:
    """Return a store for one verification, which is not made yet, in a schema of its own."""
    _check(url)
    return postgres.PostgresThrowaway(url, schema)


def operations_of(bus: Bus) -> Operations:
    """Return what an operator can do to a bus."""
    if not isinstance(bus, postgres.PostgresBus):
        raise Misconfigured(f"{type(bus).__name__} has no operations")
    return postgres.PostgresOperations(bus)


async def migrate(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Bring the store up to this version; returns the names of the migrations that were applied."""
    _check(url)
    return [migration.name for migration in await postgres.migrate(url, schema)]


async def pending_migrations(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Return the names of the migrations that the store does not have yet."""
    _check(url)
    return [migration.name for migration in await postgres.pending_migrations(url, schema)]


def _check(url: str) -> None:
    """Refuse what is neither a PostgreSQL URL nor its `name=value` form."""
    scheme, found, _ = url.partition("://")
    if scheme not in _POSTGRES_SCHEMES if found else "=" not in url:
        # It may hold a password, so it is not repeated.
        kind = f"{scheme}://" if found else "this URL"
        raise Misconfigured(f"no store is known for {kind}: {_FORM}")
    try:
        conninfo_to_dict(url)
    except ProgrammingError:
        raise Misconfigured(f"the database URL cannot be read: {_FORM}, special characters as %-codes") from None
