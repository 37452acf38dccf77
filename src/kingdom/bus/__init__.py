"""The durable event bus: one transaction for all writes, and delivery that survives crashes. It imports no backend."""

from kingdom.bus.app import Application
from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import (
    Absent,
    Accepted,
    Acked,
    Attempt,
    CallResult,
    Effect,
    Idempotency,
    Present,
    ReconcileResult,
    Rejected,
    Target,
    Throttled,
    Unclear,
    Unknown,
)
from kingdom.bus.effects.http_result import classify_response
from kingdom.bus.effects.ledger import EFFECTS
from kingdom.bus.effects.perform import close_effect, find_ledger
from kingdom.bus.envelope import Envelope
from kingdom.bus.event import Event
from kingdom.bus.log import LogCursor, LogEntry, LoggedEntry
from kingdom.bus.operations import Operations, Retention
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Retry
from kingdom.bus.payload import EventType
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Adoption, Record, RecordKind, RecordQuery
from kingdom.bus.stream import RetryPolicy, Stream, Topology
from kingdom.bus.transport import ForeignMessage, ForeignTopic
from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher

__all__ = [
    "EFFECTS",
    "Absent",
    "Accepted",
    "Acked",
    "Adoption",
    "Application",
    "Attempt",
    "Bus",
    "CallResult",
    "Dead",
    "Defer",
    "Delivery",
    "Dispatcher",
    "Done",
    "Effect",
    "Envelope",
    "Event",
    "EventType",
    "ForeignMessage",
    "ForeignTopic",
    "Idempotency",
    "LogCursor",
    "LogEntry",
    "LoggedEntry",
    "Operations",
    "Outcome",
    "Present",
    "ReconcileResult",
    "Record",
    "RecordKind",
    "RecordQuery",
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
    "classify_response",
    "close_effect",
    "find_ledger",
]
