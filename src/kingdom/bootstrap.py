"""The composition root: from a URL to a running bus. The only module that names a backend.

`file:DIRECTORY` is a store of files, `postgresql://…` one in a database. A backend is loaded when it is asked for, so
that the one needs no driver and the other no watcher.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kingdom.bus.ledger import EFFECTS
from kingdom.bus.moving import Movable
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.sequence import SEQUENCES
from kingdom.bus.stream import Topology
from kingdom.bus.throwaway import ThrowawayStore
from kingdom.errors import Misconfigured
from kingdom.settings import DEFAULT_SCHEMA

_FILE_SCHEME = "file"
_POSTGRES_SCHEMES = ("postgresql", "postgres")
_FORM = "use file:DIRECTORY or postgresql://user@host/database"
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
    create: bool = True,
) -> AsyncIterator[Bus]:
    """Open the bus that a URL names; the ledger of effects and the daily numbers are always there.

    A store of files is made where it is missing, unless `create` says no; a database is made ready by `migrate`.
    """
    every = [EFFECTS, SEQUENCES, *kinds]
    bus: Any
    if directory := directory_of(url):
        bus = _files().FilesBus(directory, topology, every, idle_limit=idle_limit, create=create)
    else:
        bus = _postgres(url).PostgresBus(
            url,
            topology,
            every,
            schema=schema,
            connections=connections,
            idle_limit=idle_limit,
            through_pgbouncer=through_pgbouncer,
            listen_dsn=listen_url,
        )
    async with bus:
        yield bus


def throwaway_store(url: str, schema: str) -> ThrowawayStore:
    """Return a store for one verification, which is not made yet, in a schema or directory of its own."""
    store: ThrowawayStore
    if directory := directory_of(url):
        store = _files().FilesThrowaway(directory, schema)
    else:
        store = _postgres(url).PostgresThrowaway(url, schema)
    return store


def operations_of(bus: Bus) -> Operations:
    """Return what an operator can do to a bus."""
    operations: Operations = _backend_of(bus, "Operations")
    return operations


def movable_of(bus: Bus) -> Movable:
    """Return what moves everything in the store of a bus to another one."""
    movable: Movable = _backend_of(bus, "Movable")
    return movable


async def migrate(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Bring the store up to this version; returns the names of the migrations that were applied."""
    if directory := directory_of(url):
        async with _files().FilesBus(directory, Topology(())):
            return []
    return [migration.name for migration in await _postgres(url).migrate(url, schema)]


async def pending_migrations(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Return the names of the migrations that the store does not have yet; files never need one."""
    if directory_of(url):
        return []
    return [migration.name for migration in await _postgres(url).pending_migrations(url, schema)]


def directory_of(url: str) -> Path | None:
    """Return the directory that a URL names, or None where it names something else."""
    scheme, found, path = url.partition(":")
    if not found or scheme.lower() != _FILE_SCHEME:
        return None
    if path.startswith("//"):
        # file://host/path would be a file of another machine.
        host, _, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise Misconfigured(f"a store of files must be on this host, not on {host}: write file:/path or file:path")
        path = f"/{rest}"
    if not path.strip("/"):
        raise Misconfigured("a store of files needs a directory of its own: write file:/path or file:path")
    return Path(path).expanduser()


def _files() -> ModuleType:
    return import_module("kingdom.backends.files")


def _postgres(url: str) -> ModuleType:
    """Load the backend for a URL that names a database; refuses what is neither a URL nor its `name=value` form."""
    scheme, found, _ = url.partition("://")
    if scheme not in _POSTGRES_SCHEMES if found else "=" not in url:
        # It may hold a password, so it is not repeated.
        kind = f"{scheme}://" if found else "this URL"
        raise Misconfigured(f"no store is known for {kind}: {_FORM}")
    try:
        backend = import_module("kingdom.backends.postgres")
    except ModuleNotFoundError as error:
        raise Misconfigured(f"PostgreSQL needs a driver ({error}): pip install 'kingdom[postgres]'") from error
    backend.check_url(url)
    return backend


def _backend_of(bus: Bus, part: str) -> Any:
    """Return a part of the backend that a bus belongs to, for this bus."""
    backend = import_module(type(bus).__module__.rpartition(".")[0])
    return getattr(backend, type(bus).__name__.removesuffix("Bus") + part)(bus)
