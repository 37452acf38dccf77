"""Everything comes to an end: events in the state they were meant for, processes when they are asked to."""

from collections import Counter
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import Violation, ViolationKind

# By itself, by a kill, or by a request that came before the process could listen to it.
_ENDED_AS_EXPECTED = frozenset({0, -9, -15})


def ended_wrong(evidence: Evidence) -> Iterator[Violation]:
    """Look for events that are still open, dead though healthy, or not dead though they can never be handled."""
    for stored in evidence.events:
        where = f"{stored.stream} position {stored.position}"
        if stored.status in ("PENDING", "PROCESSING"):
            yield Violation(ViolationKind.STUCK, stored.event_id, f"{where} is still {stored.status}")
        match evidence.expected(stored.event_id) if stored.event_id in evidence.meant else None:
            case "DONE" if stored.status in ("DEAD", "DISCARDED"):
                yield Violation(
                    ViolationKind.QUARANTINED, stored.event_id, f"{where} is {stored.status} by {stored.error_code}"
                )
            case "DEAD" if stored.status != "DEAD":
                yield Violation(ViolationKind.POISON, stored.event_id, f"{where} is {stored.status}")
            case _:
                pass


def broken(evidence: Evidence) -> Iterator[Violation]:
    """Look for invariants of the store that did not hold, and processes that ended in another way than they should."""
    for invariant, times in Counter(facts["invariant"] for facts in evidence.of("broken")).items():
        yield Violation(ViolationKind.INVARIANT, invariant, f"seen {times} times")
    at_work = {entry.process for entry in evidence.entries("ready")}
    for facts in evidence.of("exited"):
        gave_up = facts["code"] == 0 and not facts.get("asked", True) and facts["process"] in at_work
        if gave_up or facts["code"] not in _ENDED_AS_EXPECTED:
            yield Violation(ViolationKind.PROCESS, facts["process"], f"ended by itself with code {facts['code']}")
    for facts in evidence.of("did_not_end"):
        yield Violation(ViolationKind.PROCESS, facts["process"], "did not end when it was asked to")
