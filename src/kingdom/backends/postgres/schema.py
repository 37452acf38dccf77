"""Apply numbered migrations. They only go forward, each in its own transaction, under one advisory lock."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import structlog
from psycopg import AsyncConnection, IsolationLevel, sql
from psycopg.rows import dict_row

from kingdom.backends.postgres.connection import with_timeouts
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.queries import DEFAULT_SCHEMA, in_schema
from kingdom.errors import Misconfigured

_log = structlog.get_logger(__name__)

# The key of the advisory lock, which must never change: "kingdom" in ASCII.
_LOCK = 0x6B696E67646F6D


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered migration file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Return the checksum that shows whether an applied file has changed."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def all_migrations() -> list[Migration]:
    """Return every migration of this version, in order."""
    folder = files(__package__) / "migrations"
    found = [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


async def pending_migrations(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """Return the migrations that are not applied yet."""
    with translate_errors():
        async with await _connect(dsn) as connection:
            applied = await _applied(connection, schema)
    return [migration for migration in all_migrations() if migration.number not in applied]


async def migrate(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """Migrate a schema to this version and return the applied migrations. Concurrent calls are safe."""
    with translate_errors():
        async with await _connect(dsn) as connection:
            return [migration for migration in all_migrations() if await _apply(connection, schema, migration)]


async def _connect(dsn: str) -> AsyncConnection:
    connection = await AsyncConnection.connect(with_timeouts(dsn), autocommit=True, prepare_threshold=None)
    # After the wait for the lock, statements must see the migrations that another process has applied.
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    return connection


async def _apply(connection: AsyncConnection, schema: str, migration: Migration) -> bool:
    """Apply a migration; return False if it is already applied."""
    name = sql.Identifier(schema)
    async with connection.transaction():
        # The lock belongs to the transaction, because behind PgBouncer a session lasts no longer than a transaction.
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        await connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {}.migration (number int PRIMARY KEY, name text NOT NULL,"
                " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            ).format(name)
        )
        checksum = (await _applied(connection, schema)).get(migration.number)
        if checksum not in (None, migration.checksum):
            raise Misconfigured(
                f"migration {migration.name} was applied with other content: restore the file, or use a new schema"
            )
        if checksum is None:
            await connection.execute(in_schema(migration.text, schema))
            await connection.execute(
                sql.SQL("INSERT INTO {}.migration (number, name, checksum) VALUES (%s, %s, %s)").format(name),
                (migration.number, migration.name, migration.checksum),
            )
    return checksum is None


async def _applied(connection: AsyncConnection, schema: str) -> dict[int, str]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT to_regclass(%s) IS NOT NULL AS exists", (f"{schema}.migration",))
    row = await cursor.fetchone()
    if not row or not row["exists"]:
        return {}
    await cursor.execute(sql.SQL("SELECT number, checksum FROM {}.migration").format(sql.Identifier(schema)))
    return {row["number"]: row["checksum"] for row in await cursor.fetchall()}
