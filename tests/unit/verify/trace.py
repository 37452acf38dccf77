"""Handwritten histories and stores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kingdom.trial_store import StoredEvent
from kingdom.verify.evidence import SECOND_NS, Evidence
from kingdom.verify.history import HistoryEntry
from kingdom.verify.workload import ANY, LINE, topology

LEASE = timedelta(seconds=2)
WORKER = "worker-1.1"


def described(
    event: str, *, key: str | None = None, fate: str = "done", call: str = "", idempotency: str = "", **facts: Any
) -> dict[str, Any]:
    fields = {"event": event, "streams": [LINE if key else ANY], "key": key, "fate": fate, "call": call}
    return {**fields, "idempotency": idempotency or ("identifier" if call else ""), "due": None, **facts}


def stored(
    event: str,
    position: int = 1,
    *,
    key: str | None = None,
    token: int = 1,
    status: Any = "DONE",
    stream: str | None = None,
    error_code: str | None = None,
) -> StoredEvent:
    return StoredEvent(
        event_id=event,
        stream=stream or (LINE if key else ANY),
        partition_key=key,
        position=position,
        status=status,
        token=token,
        error_code=error_code or ("quarantined" if status == "DEAD" else None),
    )


def applied(
    event: str, *, key: str | None = None, token: int = 1, tally: str | None = None, **facts: Any
) -> dict[str, Any]:
    return {
        "stream": LINE if key else ANY,
        "event": event,
        "token": token,
        **({"tally": tally} if tally else {}),
        **facts,
    }


class Trace:
    """Evidence that grows line by line. Each line is one nanosecond later than the one before."""

    def __init__(self) -> None:
        streams = topology(LEASE)
        self._evidence = Evidence(streams={name: streams.stream(name) for name in streams.names()})
        self._at = 0

    def line(self, what: str, *, by: str = WORKER, **facts: Any) -> "Trace":
        entry = HistoryEntry(at=self._at, process=by, what=what, facts=facts)
        return self._with(self._at + 1, history=[*self._evidence.history, entry])

    def later(self, *, leases: float) -> "Trace":
        """Advance the time by a number of leases."""
        return self._with(self._at + int(leases * LEASE.total_seconds() * SECOND_NS))

    def published(self, *events: Mapping[str, Any], end: str = "published") -> "Trace":
        trace = self.line("publishing", events=[dict(event) for event in events])
        return trace.line(end, events=[event["event"] for event in events]) if end else trace

    def claimed(self, token: int, *events: tuple[int, str], by: str = WORKER, stream: str = ANY) -> "Trace":
        rows = [[position, event, 1, 0] for position, event in events]
        return self.line("claimed", by=by, token=token, stream=stream, events=rows)

    def handling(self, what: str, event: str, *, token: int = 1, by: str = WORKER, stream: str = LINE) -> "Trace":
        return self.line(what, by=by, stream=stream, event=event, token=token)

    def settled(self, token: int, began: int = 0, **outcomes: str) -> "Trace":
        named = {position.removeprefix("p"): outcome for position, outcome in outcomes.items()}
        return self.line("settled", token=token, began=began, outcomes=named)

    def accepted(self, key: str, event: str, identifier: str = "i") -> "Trace":
        stream = self._evidence.described[event]["streams"][0]
        return self.line("accepted", key=key, stream=stream, event=event, identifier=identifier, fence=1)

    def left(
        self, events: Sequence[StoredEvent], *traces: Mapping[str, Any], tallies: Mapping[str, int] | None = None
    ) -> Evidence:
        """Return the evidence with the contents of the store."""
        return replace(self._evidence, events=list(events), applied=list(traces), counts_by_record=tallies or {})

    def _with(self, at: int, **changes: Any) -> "Trace":
        trace = Trace()
        trace._evidence, trace._at = replace(self._evidence, **changes), at
        return trace
