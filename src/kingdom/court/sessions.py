"""The record of running agent sessions, by soldier."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.court.records import CURRENT

# The reasons why a session is killed.
ORPHANED, TIMEOUT = "orphaned", "timeout"
SESSIONS = RecordKind(name="sessions", directories={CURRENT: "state"})


class SoldierSession(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"assignment_id": "task_id"}
):
    """One agent session: its assignment, General, host, and process if known.

    A session that exceeded its time limit has `timed_out` until it is ended.
    """

    assignment_id: str
    general: str
    host: str
    started_at: datetime
    pid: int | None = None
    timed_out: bool = False


async def add_session(transaction: Transaction, soldier_id: str, session: SoldierSession) -> None:
    """Add a session, in the transaction that starts it."""
    record, sessions = await load_sessions(transaction)
    sessions[soldier_id] = session
    await save_sessions(transaction, record, sessions)


async def remove_session(transaction: Transaction, soldier_id: str) -> None:
    """Remove a session, in the transaction that ends it."""
    record, sessions = await load_sessions(transaction)
    if sessions.pop(soldier_id, None):
        await save_sessions(transaction, record, sessions)


async def mark_timed_out(transaction: Transaction, soldier_id: str) -> None:
    """Record that a session exceeded its time limit."""
    record, sessions = await load_sessions(transaction)
    if session := sessions.get(soldier_id):
        sessions[soldier_id] = msgspec.structs.replace(session, timed_out=True)
        await save_sessions(transaction, record, sessions)


async def remove_timed_out(transaction: Transaction, soldier_ids: Collection[str]) -> list[str]:
    """Remove the given sessions that exceeded their time limit, and return their soldiers."""
    record, sessions = await load_sessions(transaction)
    removed = sorted(each for each in soldier_ids if each in sessions and sessions[each].timed_out)
    if removed:
        await save_sessions(transaction, record, {each: sessions[each] for each in sessions.keys() - removed})
    return removed


async def list_sessions(transaction: Transaction) -> dict[str, SoldierSession]:
    """Return the recorded sessions by soldier."""
    return (await load_sessions(transaction))[1]


async def load_sessions(transaction: Transaction) -> tuple[Record, dict[str, SoldierSession]]:
    """Return the recorded sessions by soldier, with their record."""
    record = await transaction.get(SESSIONS.name, SESSIONS.name)
    if record is None:
        return Record(kind=SESSIONS.name, id=SESSIONS.name, state=CURRENT), {}
    return record, msgspec.convert(record.doc, dict[str, SoldierSession])


async def save_sessions(transaction: Transaction, record: Record, sessions: Mapping[str, SoldierSession]) -> None:
    """Store the sessions."""
    document: dict[str, Any] = msgspec.to_builtins(dict(sorted(sessions.items())))
    await transaction.put(record.replace(doc=document))
