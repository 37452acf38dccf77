"""Readers of the log in PostgreSQL while transactions are open that have announced no number."""

from collections import Counter
from typing import Any

from psycopg import AsyncConnection

from kingdom.backends.postgres import PostgresOperations
from kingdom.bus import LogCursor, LogEntry
from tests.integration.running import open_bus


class CountedOperations(PostgresOperations):
    """Counts its statements by name."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.statements = Counter[str]()

    async def _read(self, name: str, *given: Any) -> Any:
        self.statements[name] += 1
        return await super()._read(name, *given)


async def test_a_reader_at_the_start_of_the_log_gets_what_is_complete_without_a_wait(dsn: str) -> None:
    async with open_bus(dsn) as bus:
        async with bus.transaction() as transaction:
            await transaction.append(LogEntry(type="a", actor="tester"))
        operations = CountedOperations(bus)
        assert len(await operations.read_log(LogCursor(), 10)) == 1
        async with await AsyncConnection.connect(dsn) as writer:
            await writer.execute("LOCK TABLE kingdom.log IN ROW EXCLUSIVE MODE")
            operations.statements.clear()
            assert len(await operations.read_log(LogCursor(), 10)) == 1
    assert operations.statements["log_horizon"] == 1
