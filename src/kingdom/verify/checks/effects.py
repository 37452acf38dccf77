"""Check that calls are executed once, as far as their target can guarantee that."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.health import MachineHealth
from kingdom.verify.violation import Violation, ViolationKind


def repeated_calls(evidence: Evidence) -> Iterator[Violation]:
    """Find calls that the target executed more than once, unless a stopped sender explains it."""
    health = MachineHealth(evidence)
    for call, times in evidence.accepted.items():
        if len(times) > 1 and not _sender_was_stopped(evidence, health, call):
            how = ", ".join(f"{facts['identifier']} under fence {facts['fence']}" for facts in times)
            yield Violation(ViolationKind.REPEATED, call, f"the target executed it {len(times)} times: {how}")


def _sender_was_stopped(evidence: Evidence, health: MachineHealth, call: str) -> bool:
    """Return whether a call may be repeated, because it uses `Idempotency.TIME` and one of its senders was stopped."""
    event = evidence.accepted[call][0]["event"]
    if evidence.described[event]["idempotency"] != "time":
        return False
    handlings = [entry for entry in evidence.entries("started") if entry.facts["event"] == event]
    return any(health.stopped(entry.process, entry.at, health.end) for entry in handlings)


def unsafe_resends(evidence: Evidence) -> Iterator[Violation]:
    """Find calls that were sent more than once to a target without idempotency. Throttled requests do not count."""
    received: Counter[str] = Counter()
    for facts in evidence.facts_of("received"):
        if not facts["step"].startswith("throttle"):
            received[facts["key"]] += 1
    for described in evidence.described.values():
        if described["idempotency"] == "nothing" and received[described["call"]] > 1:
            detail = f"sent {received[described['call']]} times to a target without idempotency"
            yield Violation(ViolationKind.REPEATED, described["call"], detail)


def calls_not_closed_once(evidence: Evidence) -> Iterator[Violation]:
    """Find accepted calls that were not closed exactly once, either by an event or by their own handler."""
    closed: dict[str, int] = defaultdict(int)
    for facts in evidence.applied:
        if "closes" in facts:
            closed[facts["closes"]] += facts["closed"]
    for facts in evidence.applied:
        if facts.get("call") in closed:
            closed[facts["call"]] += 1
    for call, times in closed.items():
        if times != 1:
            yield Violation(ViolationKind.UNCLOSED, call, f"closed {times} times")
