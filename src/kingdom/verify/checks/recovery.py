"""Check that the events of a dead or stopped process get a new holder within a few leases."""

from collections.abc import Iterator

from kingdom.verify.checks.ownership import lost_claims
from kingdom.verify.evidence import Claim, Evidence
from kingdom.verify.health import MachineHealth, Span, longest, role_of
from kingdom.verify.violation import Violation, ViolationKind
from kingdom.verify.workload import ANY

# A recovery takes up to one lease until the lease ends, and less than another lease until the reaper runs. The limit is
# twice this time, for a busy machine.
_LEASES_MAX = 4


def slow_recoveries(evidence: Evidence) -> Iterator[Violation]:
    """Find lost leases whose events got a new holder too late.

    Delays of the machine, the longest wait of another event, and times without a running worker are added to the limit.
    Only the first recovered event of a lease counts, since the others wait behind it.
    """
    health, waits = MachineHealth(evidence), _waits(evidence)
    paused = {facts["stream"] for facts in evidence.facts_of("pausing")}
    recovered: dict[int, tuple[Claim, Claim]] = {}
    for former, later in lost_claims(evidence):
        # Later events of a key wait for its first event.
        if former.is_first and former.stream not in paused:
            known = recovered.get(former.token)
            recovered[former.token] = (former, later) if known is None or later.at < known[1].at else known
    for former, later in recovered.values():
        lost_at = _find_loss(health, former.process, former.at, later.at)
        if lost_at is None:
            continue
        lease, role, period = evidence.lease_ns(former.stream), role_of(former.process), (lost_at, later.at)
        excused = longest(waits, *period) + health.delay(*period) + health.absence(role, *period)
        if later.at - lost_at > _LEASES_MAX * lease + excused:
            waited, allowed = (later.at - lost_at) / lease, _LEASES_MAX + excused / lease
            detail = f"waited {waited:.1f} leases for another holder than {former.process}, {allowed:.1f} were allowed"
            yield Violation(ViolationKind.SLOW, former.event, detail)


def _find_loss(health: MachineHealth, process: str, since: int, until: int) -> int | None:
    """Return the time at which a process died or its last stop ended, or None if neither happened in the period."""
    ends = [min(end, until) for _, end in health.stopped(process, since, until)]
    if (died := health.deaths.get(process)) is not None and since <= died <= until:
        ends.append(died)
    return max(ends, default=None)


def _waits(evidence: Evidence) -> list[Span]:
    """Return the periods in which an event waited for its first claim. They show how busy the machine was.

    Ordered and delayed events are left out, because they also wait for other reasons.
    """
    first: dict[str, int] = {}
    for claim in evidence.claims:
        first.setdefault(claim.event, claim.at)
    return [
        (entry.at, first[event])
        for entry in evidence.entries("published")
        for event in entry.facts["events"]
        if event in first and first[event] > entry.at and _is_immediate(evidence, event)
    ]


def _is_immediate(evidence: Evidence, event: str) -> bool:
    described = evidence.described[event]
    return described["streams"] == [ANY] and described["due"] is None
