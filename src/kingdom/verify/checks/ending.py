"""Check how events and processes end, and the invariants of the store."""

from collections import Counter
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind

# The exit codes of a normal end, of a kill, and of a SIGTERM that came before the process could handle it.
_ENDED_AS_EXPECTED = frozenset({0, -9, -15})


def events_in_wrong_status(evidence: Evidence) -> Iterator[Violation]:
    """Find events that have not ended, and events that ended in an unexpected status."""
    for stored in evidence.events:
        where = f"{stored.stream} position {stored.position}"
        if stored.status in ("PENDING", "PROCESSING"):
            yield Violation(ViolationKind.STUCK, stored.event_id, f"{where} is still {stored.status}")
        match evidence.expected(stored.event_id) if stored.event_id in evidence.described else None:
            case "DONE" if stored.status in ("DEAD", "DISCARDED"):
                yield Violation(
                    ViolationKind.QUARANTINED, stored.event_id, f"{where} is {stored.status} by {stored.error_code}"
                )
            case "DEAD" if stored.status != "DEAD":
                yield Violation(ViolationKind.POISON, stored.event_id, f"{where} is {stored.status}")
            case _:
                pass


def broken_invariants(evidence: Evidence) -> Iterator[Violation]:
    """Find broken invariants of the store."""
    for invariant, times in Counter(facts["invariant"] for facts in evidence.facts_of("broken")).items():
        yield Violation(ViolationKind.INVARIANT, invariant, f"seen {times} times")


def unexpected_exits(evidence: Evidence) -> Iterator[Violation]:
    """Find processes that ended by themselves, and processes that did not end when they were asked to."""
    ready = {entry.process for entry in evidence.entries("ready")}
    for facts in evidence.facts_of("exited"):
        ended_early = facts["code"] == 0 and not facts.get("asked", True) and facts["process"] in ready
        if ended_early or facts["code"] not in _ENDED_AS_EXPECTED:
            yield Violation(ViolationKind.PROCESS, facts["process"], f"ended by itself with code {facts['code']}")
    for facts in evidence.facts_of("did_not_end"):
        yield Violation(ViolationKind.PROCESS, facts["process"], "did not end when it was asked to")
