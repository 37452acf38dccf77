"""Check that the requests of an operator take effect, and stay in effect."""

from collections import defaultdict
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind


def run_after_end(evidence: Evidence) -> Iterator[Violation]:
    """Find cancelled or discarded events that ran afterwards, and discarded events that are not DISCARDED."""
    began: dict[str, list[int]] = defaultdict(list)
    for entry in evidence.entries("started"):
        began[entry.facts["event"]].append(entry.at)
    for entry in evidence.entries("cancelled", "discarded"):
        event = entry.facts["event"]
        if entry.facts.get("answer", "cancelled") == "cancelled" and any(at > entry.at for at in began[event]):
            yield Violation(ViolationKind.DISOBEYED, event, f"a handler ran after it was {entry.what}")
    applied = {facts["event"] for facts in evidence.applied}
    for stored in evidence.events:
        if stored.error_code == "cancelled" and stored.status == "DEAD" and stored.event_id in applied:
            yield Violation(ViolationKind.DISOBEYED, stored.event_id, "it is cancelled, but was applied")
    for facts in evidence.facts_of("discarded"):
        found = evidence.stored.get((facts["stream"], facts["event"]))
        if found is None or found.status != "DISCARDED":
            yield Violation(
                ViolationKind.DISOBEYED, facts["event"], f"discarded, but {found.status if found else 'missing'}"
            )


def claims_while_paused(evidence: Evidence) -> Iterator[Violation]:
    """Find claims on a stream between the confirmation of its pause and the request to resume it."""
    since: dict[str, int] = {}
    for entry in evidence.entries("paused", "resuming", "claimed"):
        stream = entry.facts["stream"]
        if entry.what == "paused":
            since[stream] = entry.at
        elif entry.what == "resuming":
            since.pop(stream, None)
        elif stream in since and entry.facts.get("asked", entry.at) > since[stream]:
            detail = f"{entry.process} claimed events though the stream was paused"
            yield Violation(ViolationKind.DISOBEYED, stream, detail)


def redriven_but_not_run(evidence: Evidence) -> Iterator[Violation]:
    """Find redriven dead letters that were never handled again."""
    last: dict[str, int] = {}
    for entry in evidence.entries("started"):
        last[entry.facts["event"]] = entry.at
    asked: dict[str, int] = {}
    for entry in evidence.entries("redriving", "redriven"):
        event = entry.facts["event"]
        if entry.what == "redriving":
            asked[event] = entry.at
        elif last.get(event, -1) < asked[event]:
            yield Violation(
                ViolationKind.NOT_REDRIVEN, event, f"redriven in {entry.facts['stream']}, and no handler has run since"
            )
