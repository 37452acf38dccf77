"""Operations on PostgreSQL. Each change by an operator is one short transaction, which also writes a log entry."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import DictRow

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.connection import Connection
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.log_horizon import LogWriters
from kingdom.backends.postgres.retention import retain
from kingdom.backends.postgres.rows import entry_rows, read_entry, read_envelope, to_json
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import (
    COUNT_LIMIT,
    STREAM_PAUSED,
    STREAM_RESUMED,
    DeadFilter,
    DeadLetter,
    Operations,
    Pin,
    Retention,
    RetentionReport,
    Situation,
    StreamStats,
)
from kingdom.bus.record import refuse_unstorable
from kingdom.errors import Conflict, NotFound, Unavailable

# `pins` reports what keeps vacuum from removing old row versions. Younger transactions are normal and are not reported.
_PIN_SECONDS = 5.0
# Most writers end within milliseconds. So look a few times before returning fewer entries.
_HORIZON_LOOKS = 5
_HORIZON_PAUSE = 0.005
# How long the first reader in a process waits for the end of writers that have announced no number.
_HORIZON_SECONDS = 5.0
_DeadChange = Callable[[Connection, DictRow, str], Awaitable[bool]]


class PostgresOperations(Operations):
    """The operations of a PostgresBus for operators."""

    def __init__(self, bus: PostgresBus) -> None:
        self._bus = bus

    async def stats(self) -> list[StreamStats]:
        """See `Operations.stats`."""
        return [StreamStats(**row) for row in await self._read("stats", {"limit": COUNT_LIMIT})]

    async def situations(self, event_id: UUID) -> list[Situation]:
        """See `Operations.situations`."""
        with translate_errors():
            async with self._bus.pool.connection() as connection, connection.transaction():
                # Only a bitmap scan can use the BRIN index of the archive.
                await connection.execute("SET LOCAL enable_bitmapscan = on")
                rows = await self._run(connection, "situations", event_id=event_id)
        return [Situation(**row) for row in rows]

    async def pause(self, stream: str, *, reason: str, actor: str) -> None:
        """See `Operations.pause`."""
        async with self._change(STREAM_PAUSED, actor, {"stream": stream, "reason": reason}) as connection:
            await self._run(connection, "pause", stream=stream, reason=reason, actor=actor)

    async def resume(self, stream: str, *, actor: str) -> bool:
        """See `Operations.resume`."""
        async with self._change(STREAM_RESUMED, actor, {"stream": stream}) as connection:
            found = bool(await self._run(connection, "resume", stream=stream))
            if not found:
                # The stream is not paused, so log nothing.
                raise psycopg.Rollback
        self._bus.nudge([stream])
        return found

    async def dead_letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        """See `Operations.dead_letters`."""
        parameters = {
            "stream": which.stream,
            "type": which.type,
            "code": which.code,
            "event_id": which.event_id,
            "after": which.after,
            "limit": limit,
        }
        rows = await self._read("dead_of_stream" if which.stream else "dead_of_any", parameters)
        return [_dead_letter(row) for row in rows]

    async def patch(self, event_id: UUID, stream: str, payload: Mapping[str, Any], *, actor: str) -> None:
        """See `Operations.patch`."""
        refuse_unstorable("payload", payload)
        data = {"event_id": str(event_id), "stream": stream}
        async with self._change("dead_letter.patched", actor, data) as connection:
            if not await self._run(
                connection, "patch", event_id=event_id, stream=stream, payload=to_json(payload), actor=actor
            ):
                raise NotFound(f"event {event_id} is not a dead letter of stream {stream}: see `kingdom bus dead list`")

    async def redrive(self, positions: Sequence[int], *, actor: str) -> list[UUID]:
        """See `Operations.redrive`."""
        return await self._change_each_dead(positions, "dead_letter.redriven", actor, {}, self._redrive)

    async def discard(self, positions: Sequence[int], *, reason: str, actor: str) -> list[UUID]:
        """See `Operations.discard`."""
        discard = partial(self._discard, reason)
        return await self._change_each_dead(positions, "dead_letter.discarded", actor, {"reason": reason}, discard)

    async def cancel(self, event_id: UUID, stream: str, *, actor: str) -> Literal["cancelled", "requested"]:
        """See `Operations.cancel`."""
        data = {"event_id": str(event_id), "stream": stream}
        async with self._change("event.cancelled", actor, data) as connection:
            row = await self._find_open_event(connection, event_id, stream)
            key = {"stream": stream, "key": row["partition_key"]}
            if row["ordered"]:
                await self._run(connection, "lock_key", **key)
            waiting = await self._run(connection, "cancel_waiting", id=row["id"], actor=actor)
            if not waiting:
                # The event is in flight. It may have been claimed just now, so read its token again.
                row = await self._find_open_event(connection, event_id, stream)
                if not await self._run(connection, "cancel_running", id=row["id"], token=row["lease_token"]):
                    raise Conflict(f"event {event_id} was claimed or released just now: cancel it again")
            elif row["ordered"] and waiting[0]["was_head"]:
                if self._bus.topology.stream(stream).on_dead == "block":
                    await self._run(connection, "block", id=row["id"], **key)
                else:
                    await self._promote_first(connection, key)
        return "cancelled" if waiting else "requested"

    async def _find_open_event(self, connection: Connection, event_id: UUID, stream: str) -> DictRow:
        rows = await self._run(connection, "open_event", event_id=event_id, stream=stream)
        if not rows:
            raise NotFound(f"event {event_id} is not open in stream {stream}: it has ended or was never there")
        return rows[0]

    async def read_log(self, after: LogCursor, limit: int, about: str | None = None) -> list[LoggedEntry]:
        """See `Operations.read_log`."""
        horizon = await self._log_horizon(after.sequence)
        parameters = {"seq": after.sequence, "horizon": horizon, "limit": limit, "about": about}
        query = "read_log" if about is None else "read_log_about"
        return [read_entry(row) for row in await self._read(query, parameters)]

    async def log_end(self) -> LogCursor:
        """See `Operations.log_end`."""
        rows = await self._read("log_end", {"horizon": await self._log_horizon()})
        return LogCursor(int(rows[0]["xid"]), rows[0]["seq"]) if rows else LogCursor()

    async def keeps_log_after(self, cursor: LogCursor) -> bool:
        """See `Operations.keeps_log_after`."""
        known = {"xid": str(cursor.epoch), "seq": cursor.sequence}
        return cursor == LogCursor() or bool(await self._read("find_log_entry", known))

    async def log_lag(self) -> timedelta:
        """See `Operations.log_lag`."""
        return timedelta(seconds=(await self._read("log_lag", {}))[0]["seconds"])

    async def _log_horizon(self, needed: int | None = None) -> int:
        """Return the number up to which the log is complete. Wait briefly if it is not beyond the needed number."""
        horizon, deadline = self._bus.log_horizon, time.monotonic() + _HORIZON_SECONDS
        for attempt in count(1):
            # The horizon needs the observations in their order.
            async with self._bus.log_horizon_lock:
                rows = await self._read("log_horizon", {})
                announced = {row["writer"]: row["announced"] for row in rows if row["writer"]}
                horizon.observe(LogWriters(rows[0]["server"], rows[0]["seq"], announced))
            known = horizon.sequence
            if known is not None:
                is_enough = needed is not None and known > needed
                if is_enough or horizon.is_current or attempt >= _HORIZON_LOOKS:
                    return known
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_HORIZON_PAUSE)
        raise Unavailable(
            "an open transaction has written to the log, so the log cannot be read yet:"
            " end the transaction; `kingdom bus pins` shows it"
        )

    async def retain(self, retention: Retention) -> RetentionReport:
        """See `Operations.retain`."""
        with translate_errors():
            return await retain(self._bus, retention)

    async def pins(self) -> list[Pin]:
        """See `Operations.pins`."""
        return [Pin(**row) for row in await self._read("pins", {"seconds": _PIN_SECONDS})]

    async def _change_each_dead(
        self, positions: Sequence[int], entry_type: str, actor: str, details: Mapping[str, Any], change: _DeadChange
    ) -> list[UUID]:
        """Change each of these events that is still DEAD, each in its own transaction."""
        changed = []
        for row in await self._read("events_by_positions", {"positions": list(positions)}):
            data = {"event_id": str(row["event_id"]), "stream": row["stream"], **details}
            # If another operator was faster, nothing changes and nothing is logged.
            with suppress(NotFound):
                async with self._change(entry_type, actor, data) as connection:
                    if not await change(connection, row, actor):
                        raise NotFound(f"event {row['event_id']} is no longer a dead letter")
                changed.append(row["event_id"])
                self._bus.nudge([row["stream"]])
        return changed

    async def _redrive(self, connection: Connection, row: DictRow, actor: str) -> bool:
        return bool(await self._run(connection, "redrive", id=row["id"], actor=actor))

    async def _discard(self, reason: str, connection: Connection, row: DictRow, actor: str) -> bool:
        key = {"stream": row["stream"], "key": row["partition_key"]}
        key_row = (await self._run(connection, "lock_key", **key))[0] if row["ordered"] else None
        if not await self._run(connection, "discard", id=row["id"], actor=actor, reason=reason):
            return False
        if key_row and (key_row["blocked_by"] == row["id"] or key_row["turn"] == 0):
            await self._promote_first(connection, key)
        return True

    async def _promote_first(self, connection: Connection, key: Mapping[str, Any]) -> None:
        """Make the first open event of an idle key its head. Delete the key row if no event is open."""
        first = await self._run(connection, "first_open", **key)
        if first:
            await self._run(connection, "unblock", **key)
            await self._run(connection, "promote", id=first[0]["id"])
        else:
            await self._run(connection, "drop_key", **key)

    @asynccontextmanager
    async def _change(self, entry_type: str, actor: str, data: Mapping[str, Any]) -> AsyncIterator[Connection]:
        """Open a transaction for a change, and append a log entry at its end."""
        with translate_errors():
            async with self._bus.pool.connection() as connection, connection.transaction():
                yield connection
                entry = LogEntry(type=entry_type, actor=actor, data=data)
                await self._run(connection, "append", entries=entry_rows([entry]))

    async def _run(self, connection: Connection, name: str, **parameters: object) -> list[DictRow]:
        cursor = await connection.execute(self._bus.queries[name], parameters)
        return await cursor.fetchall() if cursor.description else []

    async def _read(self, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        with translate_errors():
            async with self._bus.pool.connection() as connection:
                return await self._run(connection, name, **parameters)


def _dead_letter(row: DictRow) -> DeadLetter:
    return DeadLetter(
        event_id=row["event_id"],
        stream=row["stream"],
        type=row["event_type"],
        partition_key=row["partition_key"],
        attempt=row["attempt_count"],
        error_code=row["last_error_code"],
        error_message=row["last_error_message"],
        created_at=row["created_at"],
        died_at=row["processed_at"],
        position=row["id"],
        envelope=read_envelope(row, row["stream"]).to_wire(),
        history=tuple(row["history"] or ()),
    )
