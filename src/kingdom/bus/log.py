"""The log: an append-only sequence of entries. Readers continue at a cursor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kingdom.bus.envelope import current_trace_id
from kingdom.clock import utc_now

# The aggregate id of log entries about a database server that lost confirmed transactions.
LOST_TRANSACTIONS = "lost-transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One entry as a transaction writes it."""

    type: str
    actor: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: datetime = field(default_factory=utc_now)
    trace_id: str = field(default_factory=current_trace_id)
    aggregate_type: str = ""
    aggregate_id: str = ""


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The position of an entry, after which a reader continues.

    `sequence` orders all entries, and `epoch` identifies the transaction that wrote the entry.
    """

    epoch: int = 0
    sequence: int = 0

    def __lt__(self, other: "LogCursor") -> bool:
        return self.sequence < other.sequence

    def __le__(self, other: "LogCursor") -> bool:
        return self.sequence <= other.sequence

    def __gt__(self, other: "LogCursor") -> bool:
        return self.sequence > other.sequence

    def __ge__(self, other: "LogCursor") -> bool:
        return self.sequence >= other.sequence

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "LogCursor":
        """Parse the text that `str` returns."""
        epoch, _, sequence = text.partition(".")
        return cls(int(epoch), int(sequence or 0))


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """One entry as a reader gets it, with its cursor."""

    cursor: LogCursor
    entry: LogEntry
