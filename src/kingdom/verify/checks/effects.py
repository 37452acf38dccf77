"""Outside calls happen once, as far as their target can promise it."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.health import MachineHealth
from kingdom.verify.violation import Violation, ViolationKind


def repeated(evidence: Evidence) -> Iterator[Violation]:
    """Look for calls that the target did more than once."""
    health = MachineHealth(evidence)
    for call, times in evidence.accepted.items():
        if len(times) > 1 and not _slept(evidence, health, call):
            how = ", ".join(f"{facts['identifier']} under fence {facts['fence']}" for facts in times)
            yield Violation(ViolationKind.REPEATED, call, f"the target did it {len(times)} times: {how}")


def _slept(evidence: Evidence, health: MachineHealth, call: str) -> bool:
    """Tell whether only time could have told about a sender of this call, and one was stopped on its way to send."""
    event = evidence.accepted[call][0]["event"]
    if evidence.meant[event]["idempotency"] != "time":
        return False
    handlings = [entry for entry in evidence.entries("started") if entry.facts["event"] == event]
    return any(health.stopped(entry.process, entry.at, health.end) for entry in handlings)


def sent_unsure(evidence: Evidence) -> Iterator[Violation]:
    """Look for second requests to a target that supports no idempotency, where the first one was not refused."""
    received: Counter[str] = Counter()
    for facts in evidence.of("received"):
        if not facts["step"].startswith("throttle"):
            received[facts["key"]] += 1
    for described in evidence.meant.values():
        if described["idempotency"] == "nothing" and received[described["call"]] > 1:
            detail = f"sent {received[described['call']]} times to a target that cannot tell them apart"
            yield Violation(ViolationKind.REPEATED, described["call"], detail)


def unclosed(evidence: Evidence) -> Iterator[Violation]:
    """Look for calls that were only taken on, and that neither an event nor proof has closed exactly once."""
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
