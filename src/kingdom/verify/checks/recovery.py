"""What a dead or stopped process held is in other hands within a few leases."""

from collections.abc import Iterator

from kingdom.verify.checks.ownership import lost_claims
from kingdom.verify.evidence import Claim, Evidence
from kingdom.verify.health import MachineHealth, Span, longest, role_of
from kingdom.verify.violation import Violation, ViolationKind
from kingdom.verify.workload import ANY

# One until the lease is over, less than one until somebody looks for it, and as much again for a busy machine.
_LEASES = 4


def slow(evidence: Evidence) -> Iterator[Violation]:
    """Look for leases that were given back too late, even with all that any other event waited meanwhile.

    The first event of a lease that has a new holder counts: the others queue behind it. So does only the time in which
    somebody was there who could have seen that the lease was over.
    """
    health, waits = MachineHealth(evidence), _waits(evidence)
    paused = {facts["stream"] for facts in evidence.of("pausing")}
    recovered: dict[int, tuple[Claim, Claim]] = {}
    for former, later in lost_claims(evidence):
        # Those behind the first of their key wait for that one.
        if former.is_first and former.stream not in paused:
            known = recovered.get(former.token)
            recovered[former.token] = (former, later) if known is None or later.at < known[1].at else known
    for former, later in recovered.values():
        left = _left(health, former.process, former.at, later.at)
        if left is None:
            continue
        lease, role = evidence.lease_ns(former.stream), role_of(former.process)
        excused = longest(waits, left, later.at) + health.delay(left, later.at) + health.absence(role, left, later.at)
        if later.at - left > _LEASES * lease + excused:
            waited, allowed = (later.at - left) / lease, _LEASES + excused / lease
            detail = f"waited {waited:.1f} leases for another holder than {former.process}, {allowed:.1f} were allowed"
            yield Violation(ViolationKind.SLOW, former.event, detail)


def _left(health: MachineHealth, process: str, since: int, until: int) -> int | None:
    """Return when a process last ceased to be able to keep what it held; None where it never did."""
    ends = [min(end, until) for _, end in health.stopped(process, since, until)]
    if (died := health.deaths.get(process)) is not None and since <= died <= until:
        ends.append(died)
    return max(ends, default=None)


def _waits(evidence: Evidence) -> list[Span]:
    """Return how long events that had nothing ahead of them waited for their first holder, by the machine's fault."""
    first: dict[str, int] = {}
    for claim in evidence.claims:
        first.setdefault(claim.event, claim.at)
    return [
        (entry.at, first[event])
        for entry in evidence.entries("published")
        for event in entry.facts["events"]
        if event in first and first[event] > entry.at and _is_free(evidence, event)
    ]


def _is_free(evidence: Evidence, event: str) -> bool:
    described = evidence.meant[event]
    return described["streams"] == [ANY] and described["due"] is None
