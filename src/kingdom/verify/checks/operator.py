"""An operator is obeyed: at once where that is promised, and for good."""

from collections import defaultdict
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind


def ended_for_good(evidence: Evidence) -> Iterator[Violation]:
    """Look for handlers of what was cancelled while it waited, or discarded, after that was confirmed."""
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
            yield Violation(ViolationKind.DISOBEYED, stored.event_id, "it counts as cancelled, and was applied")
    for facts in evidence.of("discarded"):
        found = evidence.stored.get((facts["stream"], facts["event"]))
        if found is None or found.status != "DISCARDED":
            yield Violation(
                ViolationKind.DISOBEYED, facts["event"], f"discarded, but {found.status if found else 'not there'}"
            )


def paused(evidence: Evidence) -> Iterator[Violation]:
    """Look for claims that were asked for after a pause was confirmed, and answered before anybody resumed."""
    since: dict[str, int] = {}
    for entry in evidence.entries("paused", "resuming", "claimed"):
        stream = entry.facts["stream"]
        if entry.what == "paused":
            since[stream] = entry.at
        elif entry.what == "resuming":
            since.pop(stream, None)
        elif stream in since and entry.facts.get("asked", entry.at) > since[stream]:
            yield Violation(ViolationKind.DISOBEYED, stream, f"{entry.process} was given events though it was paused")


def not_redriven(evidence: Evidence) -> Iterator[Violation]:
    """Look for dead letters that were redriven and never handled again."""
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
