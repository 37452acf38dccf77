"""The workload of the processes under test: streams, event types, and jobs whose effects can be checked."""

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from kingdom.bus import Envelope, Event, EventType, Idempotency, LogEntry, RecordKind, RetryPolicy, Stream, Topology

ANY = "verify.any"
LINE = "verify.line"
BLOCKING = "verify.blocking"
PAUSED = "verify.paused"
UNSURE = "verify.unsure"
STEADY = "verify.steady"
# The streams of workers that get faults. A steady worker has its own stream.
COMMON = (ANY, LINE, BLOCKING, PAUSED, UNSURE)

APPLIED = "verify.applied"
TALLY = RecordKind(name="verify_tally", directories={"open": "state/verify"})
# The retention removes records in the state `over` immediately, and those in `kept` never.
FLEETING = RecordKind(
    name="verify_fleeting",
    directories={"kept": "state/verify_kept", "over": "state/verify_over"},
    final=frozenset({"over"}),
    retention=timedelta(),
)
KINDS = (TALLY, FLEETING)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of one event.

    A reaction works for `work_ms`, counts in the record `tally`, competes for the dedup key `contest`, and publishes
    `follow_ups` (stream and key of each). A call happens once per key `call`; `answers` says how the target treats its
    first requests. A job with the fate `open` may end DONE or DEAD.
    """

    fate: Literal["done", "doomed", "poison", "open"] = "done"
    tally: str = "one"
    once: bool = False
    contest: str = ""
    work_ms: int = 0
    follow_ups: tuple[tuple[str, str | None], ...] = ()
    fleeting: Literal["", "kept", "over"] = ""
    call: str = ""
    answers: tuple[str, ...] = ()
    script: dict[str, str] = {}


REACTED = EventType(name="verify.Reacted", payload=Job)
BROADCAST = EventType(name="verify.Told", payload=Job)
CLOSED = EventType(name="verify.Closed", payload=Job)
CALLED = EventType(name="verify.Called", payload=Job)
CALLED_UNDER_FENCE = EventType(name="verify.CalledUnderFence", payload=Job)
CALLED_IN_TIME = EventType(name="verify.CalledInTime", payload=Job)
CALLED_UNSURE = EventType(name="verify.CalledUnsure", payload=Job)
CALLED_AND_CLOSED = EventType(name="verify.CalledAndClosed", payload=Job)
IDEMPOTENCY = {
    CALLED.name: Idempotency.IDENTIFIER,
    CALLED_UNDER_FENCE.name: Idempotency.FENCE,
    CALLED_IN_TIME.name: Idempotency.TIME,
    CALLED_UNSURE.name: Idempotency.NOTHING,
    CALLED_AND_CLOSED.name: Idempotency.IDENTIFIER,
}
_BROADCAST_TO = (ANY, LINE)


def topology(lease: timedelta, steady_lease: timedelta | None = None) -> Topology:
    """Return the streams. The steady stream may have a shorter lease; its jobs last longer than that."""
    retry = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_attempts=40)
    soon_dead = RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500), max_attempts=3)
    broadcast = frozenset({BROADCAST.name})
    return Topology(
        [
            Stream(name=ANY, lease=lease, retry=retry, subscribes=broadcast),
            Stream(name=LINE, lease=lease, retry=retry, subscribes=broadcast, ordered=True, on_dead="skip"),
            Stream(name=BLOCKING, lease=lease, retry=retry, ordered=True, on_dead="block"),
            Stream(name=PAUSED, lease=lease, retry=retry),
            Stream(name=UNSURE, lease=lease, retry=soon_dead),
            Stream(name=STEADY, lease=steady_lease or lease, retry=retry),
        ]
    )


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


def applied(event: Event[Job], process: str, **facts: Any) -> LogEntry:
    """Return the log entry that a handler writes in the transaction that settles its event."""
    envelope = event.envelope
    data = {"stream": envelope.stream, "event": str(envelope.event_id), "token": event.fence, **facts}
    return LogEntry(type=APPLIED, actor=process, data=data)
