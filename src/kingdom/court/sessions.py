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


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent session: for which assignment and General it works, on which host, and its process if known."""

    task_id: str
    general: str
    host: str
    started_at: datetime
    pid: int | None = None


async def note_session(transaction: Transaction, soldier_id: str, session: Session) -> None:
    """Put a session on the books, in the transaction in which it began."""
    record, sessions = await load_sessions(transaction)
    sessions[soldier_id] = session
    await save_sessions(transaction, record, sessions)


async def drop_session(transaction: Transaction, soldier_id: str) -> None:
    """Take a session off the books, in the transaction in which it ended."""
    record, sessions = await load_sessions(transaction)
    if sessions.pop(soldier_id, None):
        await save_sessions(transaction, record, sessions)


async def known_sessions(transaction: Transaction) -> dict[str, Session]:
    """Return the sessions on the books by soldier."""
    return (await load_sessions(transaction))[1]


async def load_sessions(transaction: Transaction) -> tuple[Record, dict[str, Session]]:
    """Return the sessions on the books by soldier, with the record that holds them."""
    record = await transaction.get(SESSIONS.name, SESSIONS.name)
    if record is None:
        return Record(kind=SESSIONS.name, id=SESSIONS.name, state=CURRENT), {}
    return record, msgspec.convert(record.doc, dict[str, Session])


async def save_sessions(transaction: Transaction, record: Record, sessions: Mapping[str, Session]) -> None:
    """Store which sessions are on the books from now on."""
    document: dict[str, Any] = msgspec.to_builtins(dict(sorted(sessions.items())))
    await transaction.put(replace(record, doc=document))
