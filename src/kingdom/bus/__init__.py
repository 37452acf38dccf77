"""The durable event bus: one write handle and delivery that survives anything. Knows no backend."""

from kingdom.bus.app import Application
from kingdom.bus.delivery import Delivery
from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.effect import (
    Absent,
    Accepted,
    Acked,
    Answer,
    Attempt,
    Effect,
    Finding,
    Happened,
    Honours,
    Rejected,
    Target,
    Throttled,
    Unclear,
    Unknown,
)
from kingdom.bus.envelope import Envelope
from kingdom.bus.http_outcome import http_answer
from kingdom.bus.ledger import EFFECTS
from kingdom.bus.log import Cursor, LogEntry, LoggedEntry
from kingdom.bus.operations import Operations, Retention
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Retry
from kingdom.bus.payload import EventType
from kingdom.bus.perform import close_effect, find_ledger
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.received import Received
from kingdom.bus.record import Adoption, Query, Record, RecordKind
from kingdom.bus.retry import RetryPolicy
from kingdom.bus.stream import Stream, Topology
from kingdom.bus.worker import Worker

__all__ = [
    "EFFECTS",
    "Absent",
    "Accepted",
    "Acked",
    "Adoption",
    "Answer",
    "Application",
    "Attempt",
    "Bus",
    "Cursor",
    "Dead",
    "Defer",
    "Delivery",
    "Dispatcher",
    "Done",
    "Effect",
    "Envelope",
    "EventType",
    "Finding",
    "Happened",
    "Honours",
    "LogEntry",
    "LoggedEntry",
    "Operations",
    "Outcome",
    "Query",
    "Received",
    "Record",
    "RecordKind",
    "Rejected",
    "Retention",
    "Retry",
    "RetryPolicy",
    "Stream",
    "Target",
    "Throttled",
    "Topology",
    "Transaction",
    "Unclear",
    "Unknown",
    "Worker",
    "close_effect",
    "find_ledger",
    "http_answer",
]
