"""The events of a dead or stopped process get a new holder within a few leases."""

from collections.abc import Iterator

from kingdom.verify.checks.ownership import lost_claims
from kingdom.verify.evidence import Claim, Evidence
from kingdom.verify.health import MachineHealth, Span, longest, role_of
from kingdom.verify.violation import Violation, ViolationKind
from kingdom.verify.workload import ANY

# One until the lease ends, less than one until the reaper runs, and as much again for a busy machine.
_LEASES = 4


def slow_recoveries(evidence: Evidence) -> Iterator[Violation]:
    """Find leases that were recovered too late, even allowing for the waits of other events meanwhile.

    Only the first recovered event of a lease counts, since the others queue behind it. Time without a running worker
    does not count.
    """
    health, waits = MachineHealth(evidence), _waits(evidence)
    paused = {facts["stream"] for facts in evidence.facts_of("pausing")}
    recovered: dict[int, tuple[Claim, Claim]] = {}
    for former, later in lost_claims(evidence):
        # Later events of a key wait for the first one.
        if former.is_first and former.stream not in paused:
            known = recovered.get(former.token)
            recovered[former.token] = (former, later) if known is None or later.at < known[1].at else known
    for former, later in recovered.values():
        left = _lost_at(health, former.process, former.at, later.at)
        if left is None:
            continue
        lease, role = evidence.lease_ns(former.stream), role_of(former.process)
        excused = longest(waits, left, later.at) + health.delay(left, later.at) + health.absence(role, left, later.at)
        if later.at - left > _LEASES * lease + excused:
            waited, allowed = (later.at - left) / lease, _LEASES + excused / lease
            detail = f"waited {waited:.1f} leases for another holder than {former.process}, {allowed:.1f} were allowed"
            yield Violation(ViolationKind.SLOW, former.event, detail)


def _lost_at(health: MachineHealth, process: str, since: int, until: int) -> int | None:
    """Return when a process last lost the ability to renew its leases, or None."""
    ends = [min(end, until) for _, end in health.stopped(process, since, until)]
    if (died := health.deaths.get(process)) is not None and since <= died <= until:
        ends.append(died)
    return max(ends, default=None)


def _waits(evidence: Evidence) -> list[Span]:
    """Return the waits of unordered, undelayed events for their first claim, which show how busy the machine was."""
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
    described = evidence.described[event]
    return described["streams"] == [ANY] and described["due"] is None
