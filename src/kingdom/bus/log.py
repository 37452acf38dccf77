"""The log: one append-only sequence of what happened, read by cursor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kingdom.bus.envelope import current_trace_id
from kingdom.clock import utc_now

# What entries are about that tell of a server which has lost what it had confirmed.
LOST_TRANSACTIONS = "lost-transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One thing that happened, as it is written."""

    type: str
    actor: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: datetime = field(default_factory=utc_now)
    trace_id: str = field(default_factory=current_trace_id)
    aggregate_type: str = ""
    aggregate_id: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """How far a reader has come; `epoch` orders transactions, `sequence` the entries of one."""

    epoch: int = 0
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Read the form that `str` writes."""
        epoch, _, sequence = text.partition(".")
        return cls(int(epoch), int(sequence or 0))


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """One entry as it is read, with the cursor behind which the next one lies."""

    cursor: Cursor
    entry: LogEntry
