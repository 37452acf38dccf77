"""The composition root: from a URL to a running bus. The only module that names a backend.

`file:DIRECTORY` is a store of files, `postgresql://…` one in a database, `embedded:DIRECTORY` one in a PostgreSQL of
our own. A backend is loaded when it is asked for, so that the one needs no driver and the other no watcher.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from kingdom.bus.ledger import EFFECTS
from kingdom.bus.moving import Movable
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.sequence import SEQUENCES
from kingdom.bus.stream import Topology
from kingdom.bus.throwaway import ThrowawayStore
from kingdom.errors import Misconfigured
from kingdom.settings import DEFAULT_SCHEMA, Settings

if TYPE_CHECKING:
    from kingdom.backends.embedded.inspection import ServerInspection
    from kingdom.backends.files.inspection import StoreInspection
    from kingdom.realm import Realm

_FILE_SCHEME = "file"
_EMBEDDED_SCHEME = "embedded"
_ACCOUNT = "account"
_POSTGRES_SCHEMES = ("postgresql", "postgres")
_FORM = "use file:DIRECTORY, embedded:DIRECTORY or postgresql://user@host/database"
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

    A store of files and an embedded server are made where they are missing, and an embedded one is brought up to this
    version, unless `create` says no; a database is made ready by `migrate`.
    """
    every = [EFFECTS, SEQUENCES, *kinds]
    bus: Any
    async with AsyncExitStack() as stack:
        if directory := directory_of(url):
            bus = _files().FilesBus(directory, topology, every, idle_limit=idle_limit, create=create)
        else:
            server = await stack.enter_async_context(reached(url, create=create))
            postgres = _postgres(server)
            if create and is_embedded(url) and await postgres.pending_migrations(server, schema):
                await postgres.migrate(server, schema)
            bus = postgres.PostgresBus(
                server,
                topology,
                every,
                schema=schema,
                connections=connections,
                idle_limit=idle_limit,
                through_pgbouncer=through_pgbouncer,
                listen_dsn=listen_url,
            )
        yield await stack.enter_async_context(bus)


@asynccontextmanager
async def reached(url: str, *, create: bool = True) -> AsyncIterator[str]:
    """Yield the URL that a driver understands; an embedded server runs for at least as long as the block does."""
    if not is_embedded(url):
        yield url
        return
    async with _embedded("running").running_server(_place_of(url), create=create) as server:
        yield server


def is_embedded(url: str) -> bool:
    """Tell whether a URL names an embedded server."""
    return url.partition(":")[0].lower() == _EMBEDDED_SCHEME


def embedded_is_installed() -> bool:
    """Tell whether there are the programs of an embedded server, and a driver."""
    try:
        import_module("kingdom.backends.postgres")
    except ModuleNotFoundError:
        return False
    installed: bool = _embedded("programs").are_installed()
    return installed


def look_at_embedded(url: str) -> "ServerInspection":
    """Look at an embedded server without starting it; raises Misconfigured where there cannot be one."""
    look: ServerInspection = _embedded("inspection").inspect_server(_place_of(url))
    return look


def look_at_files(url: str) -> "StoreInspection":
    """Look at a store of files without using it; waits a moment where somebody holds it."""
    look: StoreInspection = import_module("kingdom.backends.files.inspection").inspect_store(directory_of(url))
    return look


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
    async with reached(url) as server:
        return [migration.name for migration in await _postgres(server).migrate(server, schema)]


async def pending_migrations(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Return the names of the migrations that the store lacks; only those of a database wait for a person."""
    if directory_of(url) or is_embedded(url):
        return []
    return [migration.name for migration in await _postgres(url).pending_migrations(url, schema)]


def directory_of(url: str) -> Path | None:
    """Return the directory of files that a URL names, or None where it names something else."""
    scheme, found, path = url.partition(":")
    if not found or scheme.lower() != _FILE_SCHEME:
        return None
    return _directory_in(path, "a store of files", _FILE_SCHEME)


def generals_of(settings: Settings, realm: "Realm") -> Path:
    """Return where the Generals are: where the settings say, else in the store of files, else beside the settings."""
    if realm.generals:
        return Path(realm.generals)
    return (directory_of(settings.database_url) or settings.beside) / "generals"


def house_directory_of(settings: Settings) -> Path:
    """Return where logs and checkouts lie: in the store of files, else in `realm` beside the settings."""
    return directory_of(settings.database_url) or settings.beside / "realm"


def _directory_in(path: str, what: str, scheme: str) -> Path:
    if path.startswith("//"):
        # file://host/path would be a file of another machine.
        host, _, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise Misconfigured(f"{what} must be on this host, not on {host}: write {scheme}:/path or {scheme}:path")
        path = f"/{rest}"
    if not path.strip("/"):
        raise Misconfigured(f"{what} needs a directory of its own: write {scheme}:/path or {scheme}:path")
    return Path(path).expanduser()


def _place_of(url: str) -> Any:
    """Return where the embedded server is that a URL names, and the account that it is to run under."""
    path, _, query = url.partition(":")[2].partition("?")
    said = parse_qs(query, keep_blank_values=True)
    if set(said) - {_ACCOUNT}:
        raise Misconfigured("an embedded server knows only ?account=NAME: write embedded:DIRECTORY")
    directory = _directory_in(path, "an embedded server", _EMBEDDED_SCHEME)
    return _embedded("server_directory").ServerDirectory(directory.resolve(), "".join(said.get(_ACCOUNT, ())))


def _embedded(part: str) -> ModuleType:
    return import_module(f"kingdom.backends.embedded.{part}")


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
