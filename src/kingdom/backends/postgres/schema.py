"""Numbered forward-only migrations, each in a transaction of its own, under one advisory lock."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from psycopg import AsyncConnection, sql
from psycopg.rows import dict_row

from kingdom.backends.postgres.faults import translated
from kingdom.backends.postgres.queries import DEFAULT_SCHEMA, in_schema
from kingdom.errors import Misconfigured

# Any constant will do, as long as it never changes: "kingdom" in ASCII.
_LOCK = 0x6B696E67646F6D
_CONNECT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Return what proves that an applied file was not changed afterwards."""
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
    """Return the migrations that the database does not have yet."""
    with translated():
        async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
            applied = await _applied(connection, schema)
    return [migration for migration in all_migrations() if migration.number not in applied]


async def migrate(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """Bring a schema up to this version; returns what was applied. Safe to run from many places at once."""
    with translated():
        async with await AsyncConnection.connect(dsn, autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
            await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            try:
                return await _migrate(connection, schema)
            finally:
                await connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


async def _migrate(connection: AsyncConnection, schema: str) -> list[Migration]:
    name = sql.Identifier(schema)
    await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    await connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.migration (number int PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        ).format(name)
    )
    applied = await _applied(connection, schema)
    fresh = []
    for migration in all_migrations():
        if migration.number in applied:
            if applied[migration.number] != migration.checksum:
                raise Misconfigured(
                    f"migration {migration.name} was applied in another form: restore the file, or start a new schema"
                )
            continue
        async with connection.transaction():
            await connection.execute(in_schema(migration.text, schema))
            await connection.execute(
                sql.SQL("INSERT INTO {}.migration (number, name, checksum) VALUES (%s, %s, %s)").format(name),
                (migration.number, migration.name, migration.checksum),
            )
        fresh.append(migration)
    return fresh


async def _applied(connection: AsyncConnection, schema: str) -> dict[int, str]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("SELECT to_regclass(%s) IS NOT NULL AS exists", (f"{schema}.migration",))
    row = await cursor.fetchone()
    if not row or not row["exists"]:
        return {}
    await cursor.execute(sql.SQL("SELECT number, checksum FROM {}.migration").format(sql.Identifier(schema)))
    return {row["number"]: row["checksum"] for row in await cursor.fetchall()}
