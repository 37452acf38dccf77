"""The workload of the processes under test: streams, event types, and jobs whose effects can be checked."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from kingdom.bus import Envelope, Event, EventType, Idempotency, LogEntry, RecordKind, RetryPolicy, Stream, Topology

# An unordered stream.
ANY = "verify.any"
# An ordered stream. A dead event does not block its key.
LINE = "verify.line"
# An ordered stream. A dead event blocks its key.
BLOCKING = "verify.blocking"
# A stream that the operator pauses and resumes.
PAUSED = "verify.paused"
# A stream with few attempts, for calls to a target without idempotency.
UNSURE = "verify.unsure"
# The stream of the steady worker, which gets no faults.
STEADY = "verify.steady"
# The streams of the workers that get faults.
COMMON = (ANY, LINE, BLOCKING, PAUSED, UNSURE)

# The type of the log entries of the handlers.
APPLIED = "verify.applied"
# Records in which reactions count how often they were applied.
TALLY = RecordKind(name="verify_tally", directories={"open": "state/verify"})
# The retention removes records in the state `over` at once. It must never remove records in the state `kept`.
EXPIRING = RecordKind(
    name="verify_fleeting",
    directories={"kept": "state/verify_kept", "over": "state/verify_over"},
    final=frozenset({"over"}),
    retention=timedelta(),
)
KINDS = (TALLY, EXPIRING)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of one event.

    `fate` is the expected end of the event: a doomed event always fails, a poison event kills its worker, and an open
    event may end DONE or DEAD. A reaction works for `work_ms`, adds one to the count in the record `tally`,
    competes for the dedup key `contest`, writes an expiring record with `record_state`, and publishes `follow_ups` (the
    stream and key of each). With `once` it takes a dedup key of its own. A call to the target has the key `call`;
    `answers` lists the responses of the target to its first requests. `script` maps points of the work to steps (see
    `script.py`).
    """

    fate: Literal["done", "doomed", "poison", "open"] = "done"
    tally: str = "one"
    once: bool = False
    contest: str = ""
    work_ms: int = 0
    follow_ups: tuple[tuple[str, str | None], ...] = ()
    record_state: Literal["", "kept", "over"] = msgspec.field(name="fleeting", default="")
    call: str = ""
    answers: tuple[str, ...] = ()
    script: dict[str, str] = {}


REACTED = EventType(name="verify.Reacted", payload=Job)
BROADCAST = EventType(name="verify.Told", payload=Job)
CLOSED = EventType(name="verify.Closed", payload=Job)
# The types of events whose handler calls the target. They differ in how the target treats a repeated call: see
# `IDEMPOTENCY`.
CALL_WITH_IDENTIFIER = EventType(name="verify.Called", payload=Job)
CALL_WITH_FENCE = EventType(name="verify.CalledUnderFence", payload=Job)
CALL_VISIBLE_IN_TIME = EventType(name="verify.CalledInTime", payload=Job)
CALL_WITHOUT_IDEMPOTENCY = EventType(name="verify.CalledUnsure", payload=Job)
# The target only accepts this call. A later event of the type `CLOSED` confirms it.
CALL_CONFIRMED_LATER = EventType(name="verify.CalledAndClosed", payload=Job)
CALLS = (CALL_WITH_IDENTIFIER, CALL_WITH_FENCE, CALL_VISIBLE_IN_TIME, CALL_WITHOUT_IDEMPOTENCY, CALL_CONFIRMED_LATER)
IDEMPOTENCY = {
    CALL_WITH_IDENTIFIER.name: Idempotency.IDENTIFIER,
    CALL_WITH_FENCE.name: Idempotency.FENCE,
    CALL_VISIBLE_IN_TIME.name: Idempotency.TIME,
    CALL_WITHOUT_IDEMPOTENCY.name: Idempotency.NOTHING,
    CALL_CONFIRMED_LATER.name: Idempotency.IDENTIFIER,
}
_BROADCAST_TO = (ANY, LINE)


def topology(lease: timedelta, steady_lease: timedelta | None = None, carried: Collection[str] = ()) -> Topology:
    """Return the streams. The steady stream has `steady_lease`, and some of its jobs last longer than this lease.

    Kafka carries the streams `carried`.
    """
    retry = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_attempts=40)
    few_attempts = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_attempts=3)
    broadcast = frozenset({BROADCAST.name})
    streams = [
        Stream(name=ANY, lease=lease, retry=retry, subscribes=broadcast),
        Stream(name=LINE, lease=lease, retry=retry, subscribes=broadcast, ordered=True, on_dead="skip"),
        Stream(name=BLOCKING, lease=lease, retry=retry, ordered=True, on_dead="block"),
        Stream(name=PAUSED, lease=lease, retry=retry),
        Stream(name=UNSURE, lease=lease, retry=few_attempts),
        Stream(name=STEADY, lease=steady_lease or lease, retry=retry),
    ]
    return Topology(replace(each, transport="kafka") if each.name in carried else each for each in streams)


def describe(envelope: Envelope, *, due: datetime | None = None) -> dict[str, Any]:
    """Return the facts about a published event that the checker needs."""
    idempotency = IDEMPOTENCY.get(envelope.type)
    return {
        "event": str(envelope.event_id),
        "streams": [envelope.stream] if envelope.stream else list(_BROADCAST_TO),
        "key": envelope.partition_key,
        "fate": envelope.payload["fate"],
        "call": envelope.payload["call"] if idempotency else "",
        "closes": envelope.payload["call"] if envelope.type == CLOSED.name else "",
        "idempotency": idempotency.value if idempotency else "",
        "due": due.timestamp() if due else None,
    }


def applied_entry(event: Event[Job], process: str, **facts: Any) -> LogEntry:
    """Return the log entry of a handler. The handler writes it in the transaction that settles its event."""
    envelope = event.envelope
    data = {"stream": envelope.stream, "event": str(envelope.event_id), "token": event.fence, **facts}
    return LogEntry(type=APPLIED, actor=process, data=data)
