"""The composition root: from a URL to an open bus. No other module imports a backend.

`file:DIRECTORY` is a store of files, `postgresql://…` a database, and `embedded:DIRECTORY` a PostgreSQL server that
Kingdom runs itself. A backend is imported only when it is needed, so a store of files needs no database driver.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import parse_qs

from kingdom.bus.effects.ledger import EFFECTS
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.sequence import SEQUENCES
from kingdom.bus.stream import Topology
from kingdom.bus.throughput import THROUGHPUT
from kingdom.errors import Misconfigured
from kingdom.settings import DEFAULT_SCHEMA, Settings
from kingdom.storage.run_texts import RunTexts
from kingdom.storage.transfer import StoreTransfer
from kingdom.trial_store import TrialStore

if TYPE_CHECKING:
    from kingdom.backends.embedded.inspection import ServerInspection
    from kingdom.backends.embedded.server_directory import ServerDirectory
    from kingdom.backends.files import FilesBus
    from kingdom.backends.files.inspection import StoreInspection
    from kingdom.backends.kafka import Brokers, Courier
    from kingdom.backends.postgres import PostgresBus
    from kingdom.realm import Realm

_FILE_SCHEME = "file"
_EMBEDDED_SCHEME = "embedded"
_ACCOUNT = "account"
_KAFKA = "kafka"
_POSTGRES_SCHEMES = ("postgresql", "postgres")
_URL_FORMS = "use file:DIRECTORY, embedded:DIRECTORY or postgresql://user@host/database"
# The store aborts a transaction that is idle for this long.
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
    kafka: Settings | None = None,
) -> AsyncIterator[Bus]:
    """Open the bus of a URL. The record kinds of effects, daily sequences and throughput are always included.

    A process that handles streams with the transport kafka needs the addresses of the brokers (`kafka`). A process that
    only publishes to them does not.

    With `create`, a store of files or an embedded server is created if it does not exist, and an embedded server is
    migrated to this version. A database needs `migrate` first.
    """
    every = [EFFECTS, SEQUENCES, THROUGHPUT, *kinds]
    bus: FilesBus | PostgresBus
    async with AsyncExitStack() as stack:
        if directory := directory_of(url):
            from kingdom.backends import files

            bus = files.FilesBus(directory, topology, every, idle_limit=idle_limit, create=create)
        else:
            server = await stack.enter_async_context(server_url(url, create=create))
            _check_postgres(server)
            from kingdom.backends import postgres

            if create and is_embedded(url) and await postgres.pending_migrations(server, schema):
                await postgres.migrate(server, schema)
            bus = _bus_class(topology, kafka)(
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
async def server_url(url: str, *, create: bool = True) -> AsyncIterator[str]:
    """Yield a URL for the database driver. An embedded server runs at least as long as the block."""
    if not is_embedded(url):
        yield url
        return
    from kingdom.backends.embedded.running import running_server

    async with running_server(_server_directory(url), create=create) as server:
        yield server


def is_embedded(url: str) -> bool:
    """Return whether a URL names an embedded server."""
    return url.partition(":")[0].lower() == _EMBEDDED_SCHEME


def embedded_is_installed() -> bool:
    """Return whether the programs of an embedded server and a database driver are installed."""
    try:
        import kingdom.backends.postgres  # noqa: F401 - only to see whether its driver is installed
    except ModuleNotFoundError:
        return False
    from kingdom.backends.embedded.programs import are_installed

    return are_installed()


def inspect_embedded(url: str) -> "ServerInspection":
    """Inspect an embedded server without starting it. Raises Misconfigured if the directory cannot have one."""
    from kingdom.backends.embedded.inspection import inspect_server

    return inspect_server(_server_directory(url))


def inspect_files(url: str) -> "StoreInspection":
    """Inspect a store of files without using it. Waits briefly if another process holds its lock."""
    from kingdom.backends.files.inspection import inspect_store

    return inspect_store(_required_directory(url))


def trial_store(url: str, schema: str, *, kafka: Settings | None = None, applied: str = "") -> TrialStore:
    """Return a store for one verification, in its own schema or directory. It is not created yet.

    With the settings of Kafka, events may also be in topics. There, an event is finished when its handler has written a
    log entry of the type `applied`.
    """
    if directory := directory_of(url):
        from kingdom.backends.files import FilesTrialStore

        return FilesTrialStore(directory, schema)
    _check_postgres(url)
    if kafka is not None and kafka.kafka_servers:
        brokers = _brokers(kafka)
        from kingdom.backends.kafka import KafkaTrialStore

        return KafkaTrialStore(url, schema, brokers, applied)
    from kingdom.backends.postgres import PostgresTrialStore

    return PostgresTrialStore(url, schema)


def operations_of(bus: Bus) -> Operations:
    """Return the operations of a bus for operators."""
    if _is_files_bus(bus):
        from kingdom.backends.files import FilesOperations

        return FilesOperations(bus)
    if _is_postgres_bus(bus):
        from kingdom.backends.postgres import PostgresOperations

        return PostgresOperations(bus)
    raise _unknown_backend(bus)


def transfer_of(bus: Bus) -> StoreTransfer:
    """Return the object that exports and imports the store of a bus."""
    if _is_files_bus(bus):
        from kingdom.backends.files import FilesTransfer

        return FilesTransfer(bus)
    if _is_postgres_bus(bus):
        from kingdom.backends.postgres import PostgresTransfer

        return PostgresTransfer(bus)
    raise _unknown_backend(bus)


def run_texts_of(bus: Bus) -> RunTexts | None:
    """Return the copies of transcripts and diffs in the store of a bus, or None for a store of files."""
    if not _is_postgres_bus(bus):
        return None
    from kingdom.backends.postgres import PostgresRunTexts

    return PostgresRunTexts(bus)


def require_brokers(settings: Settings, topology: Topology, streams: Sequence[str]) -> None:
    """Raise Misconfigured if one of the streams has a transport and the brokers are not known."""
    if any(topology.stream(each).transport for each in streams):
        _brokers(settings)


def count_brokers(settings: Settings) -> int:
    """Return how many brokers the Kafka cluster has. Raises Unavailable if none answers."""
    return _brokers(settings).count()


def courier_of(bus: Bus, settings: Settings, *, lease: timedelta | None = None) -> "Courier":
    """Return the courier that sends the events of a bus to Kafka. `lease` replaces its usual lease."""
    if not bus.topology.carried():
        raise Misconfigured('no stream has a transport: declare one with Stream(name=…, transport="kafka")')
    if not _is_postgres_bus(bus):
        raise Misconfigured("only events of PostgreSQL can be sent to Kafka: set KINGDOM_DATABASE_URL to a database")
    brokers = _brokers(settings)
    from kingdom.backends.kafka import Courier

    return Courier(bus, brokers, lease=lease) if lease else Courier(bus, brokers)


def _bus_class(topology: Topology, kafka: Settings | None) -> "Callable[..., PostgresBus]":
    """Return the class of the bus: one that also reads topics if a stream has a transport and the brokers are known."""
    from kingdom.backends.postgres import PostgresBus

    if not _has_transport(topology) or kafka is None or not kafka.kafka_servers:
        return PostgresBus
    brokers = _brokers(kafka)
    from kingdom.backends.kafka import KafkaBus

    return partial(KafkaBus, brokers=brokers)


def _has_transport(topology: Topology) -> bool:
    found = {stream.transport for stream in map(topology.stream, topology.names())} - {None}
    if unknown := found - {_KAFKA}:
        raise Misconfigured(f"there is no transport {unknown.pop()!r}: write transport={_KAFKA!r}")
    return bool(found)


def _brokers(settings: Settings) -> "Brokers":
    if settings.kafka_servers is None:
        raise Misconfigured("the brokers of Kafka are not known: set KINGDOM_KAFKA_SERVERS to HOST:PORT,HOST:PORT")
    try:
        from kingdom.backends.kafka import Brokers
    except ModuleNotFoundError as error:
        raise Misconfigured(f"Kafka needs a client ({error}): pip install 'kingdom[kafka]'") from error
    return Brokers(
        servers=settings.kafka_servers,
        prefix=f"{settings.schema}." if settings.kafka_prefix is None else settings.kafka_prefix,
        partitions=settings.kafka_partitions,
        options=settings.kafka_options,
    )


async def migrate(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Migrate the store to this version, and return the names of the applied migrations."""
    if directory := directory_of(url):
        from kingdom.backends.files import FilesBus

        async with FilesBus(directory, Topology(())):
            return []
    async with server_url(url) as server:
        _check_postgres(server)
        from kingdom.backends import postgres

        return [migration.name for migration in await postgres.migrate(server, schema)]


async def pending_migrations(url: str, *, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Return the names of the migrations that a database lacks. Other stores migrate themselves."""
    if directory_of(url) or is_embedded(url):
        return []
    _check_postgres(url)
    from kingdom.backends import postgres

    return [migration.name for migration in await postgres.pending_migrations(url, schema)]


def directory_of(url: str) -> Path | None:
    """Return the directory of a store of files, or None if the URL names another kind of store."""
    scheme, found, path = url.partition(":")
    if not found or scheme.lower() != _FILE_SCHEME:
        return None
    return _parse_directory(path, "a store of files", _FILE_SCHEME)


def generals_directory_of(settings: Settings, realm: "Realm") -> Path:
    """Return the directory of the Generals: as configured, else in the directory of the realm."""
    return Path(realm.generals) if realm.generals else realm_directory_of(settings) / "generals"


def realm_directory_of(settings: Settings) -> Path:
    """Return the directory that people edit: the store of files, else the directory of kingdom.yaml."""
    return directory_of(settings.database_url) or settings.base_directory


def data_directory_of(settings: Settings) -> Path:
    """Return the directory of logs and checkouts: the store of files, else `realm` next to kingdom.yaml."""
    return directory_of(settings.database_url) or settings.base_directory / "realm"


def create_data_directory(settings: Settings) -> Path:
    """Create the directory of logs and checkouts if it is missing, and return it."""
    directory = data_directory_of(settings)
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        if is_embedded(settings.database_url):
            # The server may run under another account, and its directory is in this one by default.
            directory.chmod(0o711)
    return directory


def _required_directory(url: str) -> Path:
    directory = directory_of(url)
    if directory is None:
        raise Misconfigured(f"this URL does not name a store of files: write {_FILE_SCHEME}:DIRECTORY")
    return directory


def _parse_directory(path: str, what: str, scheme: str) -> Path:
    if path.startswith("//"):
        # file://host/path would be a file on another machine.
        host, _, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise Misconfigured(f"{what} must be on this host, not on {host}: write {scheme}:/path or {scheme}:path")
        path = f"/{rest}"
    if not path.strip("/"):
        raise Misconfigured(f"{what} needs its own directory: write {scheme}:/path or {scheme}:path")
    return Path(path).expanduser()


def _server_directory(url: str) -> "ServerDirectory":
    """Return the directory of an embedded server, and the account under which it runs."""
    from kingdom.backends.embedded.server_directory import ServerDirectory

    path, _, query = url.partition(":")[2].partition("?")
    options = parse_qs(query, keep_blank_values=True)
    if set(options) - {_ACCOUNT}:
        raise Misconfigured("the only option of an embedded server is ?account=NAME: write embedded:DIRECTORY")
    directory = _parse_directory(path, "an embedded server", _EMBEDDED_SCHEME)
    return ServerDirectory(directory.resolve(), "".join(options.get(_ACCOUNT, ())))


def _check_postgres(url: str) -> None:
    """Raise Misconfigured unless the text is a PostgreSQL URL or `name=value` pairs, and the driver is installed."""
    scheme, found, _ = url.partition("://")
    if scheme not in _POSTGRES_SCHEMES if found else "=" not in url:
        # The URL may contain a password, so the message does not repeat it.
        kind = f"{scheme}://" if found else "this URL"
        raise Misconfigured(f"{kind} is not a known kind of store: {_URL_FORMS}")
    try:
        from kingdom.backends.postgres import check_url
    except ModuleNotFoundError as error:
        raise Misconfigured(f"PostgreSQL needs a driver ({error}): pip install 'kingdom[postgres]'") from error
    check_url(url)


# The next functions compare module names, because importing the classes would load both backends.
def _is_files_bus(bus: Bus) -> "TypeGuard[FilesBus]":
    return _is_from("kingdom.backends.files.", bus)


def _is_postgres_bus(bus: Bus) -> "TypeGuard[PostgresBus]":
    return _is_from("kingdom.backends.postgres.", bus)


def _is_from(package: str, bus: Bus) -> bool:
    return any(each.__module__.startswith(package) for each in type(bus).__mro__)


def _unknown_backend(bus: Bus) -> Misconfigured:
    return Misconfigured(f"{type(bus).__name__} is not a bus that bootstrap has opened")
