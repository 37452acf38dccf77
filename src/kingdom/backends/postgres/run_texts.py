"""Texts of runs on PostgreSQL: compressed pieces in a table with one partition per day."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

from psycopg.rows import DictRow

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import translate_errors
from kingdom.storage.run_texts import RunTexts, TextExtent, TextPiece

# The first half of the keys of advisory locks on texts: "text" in ASCII.
_LOCK_CLASS = 0x74657874


class PostgresRunTexts(RunTexts):
    """The texts of runs in the schema of a bus."""

    def __init__(self, bus: PostgresBus) -> None:
        self._bus = bus

    async def append(self, run: str, name: str, pieces: Sequence[TextPiece]) -> int:
        """See `RunTexts.append`."""
        text = {"run": run, "name": name}
        columns = {
            "starts": [piece.start for piece in pieces],
            "stops": [piece.end for piece in pieces],
            "cuts": [piece.is_cut for piece in pieces],
            "contents": await asyncio.to_thread(lambda: [zlib.compress(piece.content) for piece in pieces]),
        }
        queries = self._bus.queries
        with translate_errors():
            async with self._bus.pool.connection() as connection, connection.transaction():
                await connection.execute(queries["lock_text"], {**text, "lock_class": _LOCK_CLASS})
                cursor = await connection.execute(queries["append_text"], {**text, **columns})
                (row,) = await cursor.fetchall()
        return int(row["stop"])

    async def extents(self, run: str) -> dict[str, TextExtent]:
        """See `RunTexts.extents`."""
        rows = await self._read("text_extents", run=run)
        return {row["name"]: TextExtent(start=row["start"], end=row["stop"], is_cut=row["is_cut"]) for row in rows}

    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        """See `RunTexts.read`."""
        rows = await self._read("read_text", run=run, name=name, after=after, limit=limit)
        return await asyncio.to_thread(lambda: [_piece(row) for row in rows])

    async def _read(self, query: str, /, **parameters: Any) -> list[DictRow]:
        with translate_errors():
            async with self._bus.pool.connection() as connection:
                cursor = await connection.execute(self._bus.queries[query], parameters)
                return await cursor.fetchall()


def _piece(row: DictRow) -> TextPiece:
    return TextPiece(start=row["start"], content=zlib.decompress(row["content"]), is_cut=row["is_cut"])
