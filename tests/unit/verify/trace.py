"""Histories and stores written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kingdom.bus.throwaway import StoredEvent
from kingdom.verify.checker import Evidence
from kingdom.verify.history import Entry

LINE = "verify.line"
ANY = "verify.any"


def described(event: str, *, key: str | None = None, fate: str = "done", call: str = "") -> dict[str, Any]:
    return {"event": event, "stream": LINE if key else ANY, "key": key, "fate": fate, "call": call}


def stored(
    event: str, position: int = 1, *, key: str | None = None, token: int = 1, status: Any = "DONE"
) -> StoredEvent:
    return StoredEvent(
        event_id=event,
        stream=LINE if key else ANY,
        partition_key=key,
        position=position,
        status=status,
        token=token,
        error_code="quarantined" if status == "DEAD" else None,
    )


def applied(event: str, *, token: int = 1, tally: str | None = None, **facts: Any) -> dict[str, Any]:
    return {"event": event, "token": token, **({"tally": tally} if tally else {}), **facts}


class Trace:
    """Evidence that grows line by line; each line is one nanosecond later."""

    def __init__(self) -> None:
        self._evidence = Evidence()

    def line(self, what: str, **facts: Any) -> "Trace":
        history = self._evidence.history
        entry = Entry(at=len(history), process="worker-1.1", what=what, facts=facts)
        return self._with(history=[*history, entry])

    def published(self, *events: Mapping[str, Any], end: str = "published") -> "Trace":
        trace = self.line("publishing", events=[dict(event) for event in events])
        return trace.line(end, events=[event["event"] for event in events]) if end else trace

    def claimed(self, token: int, *positions: int) -> "Trace":
        return self.line("claimed", token=token, events=[[position, "", 1, 0] for position in positions])

    def settled(self, token: int, began: int = 0, **outcomes: str) -> "Trace":
        named = {position.removeprefix("p"): outcome for position, outcome in outcomes.items()}
        return self.line("settled", token=token, began=began, outcomes=named)

    def accepted(self, key: str, event: str, identifier: str = "i") -> "Trace":
        return self.line("accepted", key=key, event=event, identifier=identifier, fence=1)

    def left(
        self, events: Sequence[StoredEvent], *traces: Mapping[str, Any], tallies: Mapping[str, int] | None = None
    ) -> Evidence:
        """Return the evidence with what is found in the store."""
        return replace(self._evidence, events=list(events), applied=list(traces), tallies=tallies or {})

    def _with(self, **changes: Any) -> "Trace":
        trace = Trace()
        trace._evidence = replace(self._evidence, **changes)
        return trace
