"""`python -m bench.stream.writer URL NAME ENTRIES SEED`: write numbered entries, each with the numbers that it read."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from bench.stream.store import EARLY, ENTRY, WRITERS, open_store
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.errors import Conflict

_ENTRIES_MAX = 8
_PAUSE_MAX_SECONDS = 0.02
_ROLLBACK_SHARE = 0.1
# Some transactions stay open after they have written, until others have written this many entries, and until the server
# of the bench has had time to read them.
_LONG_SHARE = 0.1
_LONG_ENTRIES = 30
_READ_SECONDS = 0.5
_LONG_SECONDS = 3.0


class RolledBackError(Exception):
    """Raised to roll back a transaction."""


async def write(url: str, name: str, entries: int, seed: int) -> None:
    """Write entries in transactions of random size. Some transactions are rolled back."""
    chance = random.Random(seed)
    async with open_store(url) as bus:
        written = 0
        while written < entries:
            count = min(chance.randint(1, _ENTRIES_MAX), entries - written)
            # A conflict is possible in a store of files, where transactions lock nothing.
            with suppress(RolledBackError, Conflict):
                async with _transaction(bus, name, chance) as transaction:
                    await _append(transaction, name, written, count)
                written += count


async def _append(transaction: Transaction, name: str, written: int, count: int) -> None:
    known = {record.id: record.doc["last"] for record in await transaction.find(RecordQuery(kind=WRITERS.name))}
    own = await transaction.get(WRITERS.name, name) or Record(kind=WRITERS.name, id=name, state="open")
    numbers = range(written + 1, written + count + 1)
    data = [{"writer": name, "number": number, "knows": known | {name: number - 1}} for number in numbers]
    await transaction.put(_with_doc(own, {"last": numbers[-1]}))
    await transaction.append(*(LogEntry(type=ENTRY, actor=name, data=each, aggregate_id=name) for each in data))


@asynccontextmanager
async def _transaction(bus: Bus, name: str, chance: random.Random) -> AsyncIterator[Transaction]:
    """Open a transaction. In a database, it gets its transaction id before it reads, and commits later."""
    rolls_back = chance.random() < _ROLLBACK_SHARE
    if not bus.joins_callers_transaction:
        async with bus.transaction() as transaction:
            yield transaction
            if rolls_back:
                raise RolledBackError
        return
    # With a store of files, the driver may not be installed.
    from psycopg import AsyncConnection  # noqa: PLC0415

    postgres: Any = bus
    async with await AsyncConnection.connect(postgres.dsn) as connection:
        async with postgres.join(connection) as transaction:
            early = await transaction.get(EARLY.name, name) or Record(kind=EARLY.name, id=name, state="open")
            await transaction.put(_with_doc(early, {}))
        await asyncio.sleep(chance.uniform(0, _PAUSE_MAX_SECONDS))
        async with postgres.join(connection) as transaction:
            yield transaction
        long = chance.random() < _LONG_SHARE
        await (_until_others_wrote(connection) if long else asyncio.sleep(chance.uniform(0, _PAUSE_MAX_SECONDS)))
        if rolls_back:
            raise RolledBackError


async def _until_others_wrote(connection: Any) -> None:
    async def last_number() -> int:
        cursor = await connection.execute("SELECT last_value FROM kingdom.log_seq_seq")
        return int((await cursor.fetchone())[0])

    wanted = await last_number() + _LONG_ENTRIES
    with suppress(TimeoutError):
        async with asyncio.timeout(_LONG_SECONDS):
            while await last_number() < wanted:  # noqa: ASYNC110 - other processes make it true
                await asyncio.sleep(_PAUSE_MAX_SECONDS)
    await asyncio.sleep(_READ_SECONDS)


def _with_doc(record: Record, doc: dict[str, Any]) -> Record:
    return Record(kind=record.kind, id=record.id, state=record.state, doc=doc, version=record.version)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
