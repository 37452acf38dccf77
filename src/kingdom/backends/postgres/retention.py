"""Create the partitions of the next days, drop old ones, and remove expired dedup keys and old ended records."""

from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any

from psycopg import errors, sql
from psycopg.types.json import Jsonb

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.bus.operations import Retention, RetentionReport
from kingdom.clock import utc_now

# The key of the advisory lock that lets only one process change partitions at a time: "retain" in ASCII.
_LOCK = 0x72657461696E
# While the clean-up waits for a table lock, settlements queue behind it. So it waits only briefly, and does not even
# try while an older transaction, such as a dump, reads the table. DETACH CONCURRENTLY would not block settlements, but
# PostgreSQL refuses it for a table with a default partition.
_LOCK_WAIT = "100ms"
_READER_SECONDS = 0.2


async def retain(bus: PostgresBus, retention: Retention) -> RetentionReport:
    """Create and drop partitions, and remove expired rows. Skip partitions while another process changes them."""
    async with bus.pool.connection() as connection:
        made = dropped = 0
        # Only the clock of the database counts: a host with a wrong clock must not drop partitions.
        cursor = await connection.execute("SELECT now() AS now")
        row = await cursor.fetchone()
        now = row["now"].astimezone(UTC) if row else utc_now()
        for parent, column, keep in (
            ("outbox_archive", "processed_at", retention.archive),
            ("log", "logged_at", retention.log),
            ("run_text", "written_at", retention.run_texts),
            ("courier_event", "created_at", max(retention.archive, await _unsent_age(bus, connection))),
        ):
            table = _PartitionedTable(connection, bus.schema, parent, column)
            made += await table.make_ahead(now.date(), retention.partitions_ahead_days)
            dropped += await table.drop_before((now - keep).date())

        async def remove(name: str, **parameters: Any) -> int:
            cursor = await connection.execute(bus.queries[name], parameters)
            return len(await cursor.fetchall())

        keys = await _repeat_until_none(partial(remove, "remove_once_keys"))
        records = 0
        for kind in bus.kinds.values():
            if kind.retention is not None:
                rules = {"keep": kind.retention, "final_when": Jsonb(kind.final_when), "kept_for": kind.kept_for}
                records += await _repeat_until_none(partial(remove, "remove_records", kind=kind.name, **rules))
    return RetentionReport(
        partitions_made=made, partitions_dropped=dropped, dedup_keys_removed=keys, records_removed=records
    )


async def _unsent_age(bus: PostgresBus, connection: Connection) -> timedelta:
    """Return an age above that of every event that waits for the courier."""
    (row,) = await (await connection.execute(bus.queries["courier_lag"])).fetchall()
    # courier_lag looks at the transaction that began first. Another unsent event may have been published earlier.
    return timedelta(seconds=row["seconds"]) + timedelta(days=1)


async def _repeat_until_none(remove: Callable[[], Awaitable[int]]) -> int:
    total = 0
    while removed := await remove():
        total += removed
    return total


class _PartitionedTable:
    """A table with one partition per day and a default partition."""

    def __init__(self, connection: Connection, schema: str, parent: str, column: str) -> None:
        self._connection = connection
        self._schema = schema
        self._parent = parent
        self._column = sql.Identifier(column)

    async def make_ahead(self, today: date, days: int) -> int:
        """Create the missing partitions of today, of the next days, and of days in the default partition."""
        wanted = {today + timedelta(days=offset) for offset in range(days + 1)} | await self._stray_days()
        return await self._change_until_refused(self._make, wanted - await self._days())

    async def drop_before(self, oldest: date) -> int:
        """Drop the partitions of all days before the oldest day to keep."""
        return await self._change_until_refused(self._drop, {day for day in await self._days() if day < oldest})

    async def _change_until_refused(self, change: Callable[[date], Awaitable[bool]], days: set[date]) -> int:
        """Change the partitions of some days. Stop if a change fails, because the next change would fail too."""
        changed = 0
        for day in sorted(days):
            if await self._has_long_reader(day) or not await change(day):
                break
            changed += 1
        return changed

    async def _has_long_reader(self, day: date) -> bool:
        """Return whether a long transaction uses the tables of a day.

        A transaction counts as long if this database role may not see when it began.
        """
        cursor = await self._connection.execute(
            "SELECT 1 FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.relation = ANY(%s::regclass[]::oid[]) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND a.backend_type IS DISTINCT FROM 'autovacuum worker'"
            " AND coalesce(a.xact_start < clock_timestamp() - %s * interval '1 s', true) LIMIT 1",
            ([f"{self._schema}.{name}" for name in await self._tables(day)], _READER_SECONDS),
        )
        return bool(await cursor.fetchall())

    async def _tables(self, day: date) -> list[str]:
        part = [f"{self._parent}_{day:%Y%m%d}"] if day in await self._days() else []
        return [self._parent, f"{self._parent}_default", *part]

    async def _days(self) -> set[date]:
        """Return the days that have a partition."""
        cursor = await self._connection.execute(
            "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass",
            (f"{self._schema}.{self._parent}",),
        )
        suffixes = [row["name"].removeprefix(f"{self._parent}_") for row in await cursor.fetchall()]
        return {datetime.strptime(s, "%Y%m%d").replace(tzinfo=UTC).date() for s in suffixes if s.isdigit()}

    async def _stray_days(self) -> set[date]:
        """Return the days whose rows are in the default partition, because no partition was created in time."""
        names = {"column": self._column, "fallback": sql.Identifier(self._schema, f"{self._parent}_default")}
        query = sql.SQL("SELECT DISTINCT ({column} AT TIME ZONE 'UTC')::date AS day FROM {fallback}")
        cursor = await self._connection.execute(query.format(**names))
        return {row["day"] for row in await cursor.fetchall()}

    async def _make(self, day: date) -> bool:
        """Create the partition of a day, and move rows of that day from the default partition into it."""
        start = datetime.combine(day, time(), UTC)
        names = {
            "parent": sql.Identifier(self._schema, self._parent),
            "part": self._name(day),
            "fallback": sql.Identifier(self._schema, f"{self._parent}_default"),
            "column": self._column,
            "start": sql.Literal(start),
            "end": sql.Literal(start + timedelta(days=1)),
        }
        return await self._run_exclusively(
            "CREATE TABLE {part} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
            # No row of that day may be added during the move.
            "LOCK TABLE {fallback} IN ACCESS EXCLUSIVE MODE",
            "WITH moved AS (DELETE FROM {fallback} WHERE {column} >= {start} AND {column} < {end} RETURNING *)"
            " INSERT INTO {part} SELECT * FROM moved",
            "ALTER TABLE {parent} ATTACH PARTITION {part} FOR VALUES FROM ({start}) TO ({end})",
            names=names,
        )

    async def _drop(self, day: date) -> bool:
        return await self._run_exclusively("DROP TABLE {part}", names={"part": self._name(day)})

    async def _run_exclusively(self, *statements: Any, names: dict[str, sql.Composable]) -> bool:
        """Run statements in one transaction. Return False if another process uses or changes the tables now."""
        try:
            async with self._connection.transaction():
                cursor = await self._connection.execute("SELECT pg_try_advisory_xact_lock(%s) AS mine", (_LOCK,))
                row = await cursor.fetchone()
                if not row or not row["mine"]:
                    return False
                await self._connection.execute("SELECT set_config('lock_timeout', %s, true)", (_LOCK_WAIT,))
                for statement in statements:
                    await self._connection.execute(sql.SQL(statement).format(**names))
        except (errors.LockNotAvailable, errors.DuplicateTable, errors.UndefinedTable, errors.CheckViolation):
            return False
        return True

    def _name(self, day: date) -> sql.Identifier:
        return sql.Identifier(self._schema, f"{self._parent}_{day:%Y%m%d}")
