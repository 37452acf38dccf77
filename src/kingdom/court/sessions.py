"""The books of agent sessions: for which assignment each works, on which host, and its process if known."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.court.records import CURRENT

SESSIONS = RecordKind(name="sessions", directories={CURRENT: "state"})


class SoldierSession(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"assignment_id": "task_id"}
):
    """One agent session: for which assignment and General it works, on which host, and its process if known."""

    assignment_id: str
    general: str
    host: str
    started_at: datetime
    pid: int | None = None


async def add_session(transaction: Transaction, soldier_id: str, session: SoldierSession) -> None:
    """Put a session on the books, in the transaction in which it began."""
    record, sessions = await load_sessions(transaction)
    sessions[soldier_id] = session
    await save_sessions(transaction, record, sessions)


async def remove_session(transaction: Transaction, soldier_id: str) -> None:
    """Take a session off the books, in the transaction in which it ended."""
    record, sessions = await load_sessions(transaction)
    if sessions.pop(soldier_id, None):
        await save_sessions(transaction, record, sessions)


async def list_sessions(transaction: Transaction) -> dict[str, SoldierSession]:
    """Return the sessions on the books by soldier."""
    return (await load_sessions(transaction))[1]


async def load_sessions(transaction: Transaction) -> tuple[Record, dict[str, SoldierSession]]:
    """Return the sessions on the books by soldier, with the record that holds them."""
    record = await transaction.get(SESSIONS.name, SESSIONS.name)
    if record is None:
        return Record(kind=SESSIONS.name, id=SESSIONS.name, state=CURRENT), {}
    return record, msgspec.convert(record.doc, dict[str, SoldierSession])


async def save_sessions(transaction: Transaction, record: Record, sessions: Mapping[str, SoldierSession]) -> None:
    """Store which sessions are on the books from now on."""
    document: dict[str, Any] = msgspec.to_builtins(dict(sorted(sessions.items())))
    await transaction.put(replace(record, doc=document))
