"""What a dead or stopped process held is in other hands within a few leases."""

from collections.abc import Iterator

from kingdom.verify.checks.ownership import lost_claims
from kingdom.verify.evidence import Evidence
from kingdom.verify.finding import Finding, Kind
from kingdom.verify.health import Health, Span, longest
from kingdom.verify.workload import ANY

# One until the lease is over, less than one until somebody looks for it, and as much again for a busy machine.
_LEASES = 4


def slow(evidence: Evidence) -> Iterator[Finding]:
    """Look for events that waited longer for a new holder, even with all that any other event waited meanwhile."""
    health, waits = Health(evidence), _waits(evidence)
    paused = {facts["stream"] for facts in evidence.of("pausing")}
    for former, later in lost_claims(evidence):
        left = _left(health, former.process, former.at, later.at)
        # Those behind the first of their key wait for that one.
        if left is None or not former.is_first or former.stream in paused:
            continue
        lease = evidence.lease_ns(former.stream)
        bound = _LEASES * lease + longest(waits, left, later.at) + health.delay(left, later.at)
        if later.at - left > bound:
            waited = f"{(later.at - left) / lease:.1f} leases for another holder, {bound / lease:.1f} were allowed"
            yield Finding(Kind.SLOW, former.event, f"waited {waited}, after {former.process} had it")


def _left(health: Health, process: str, since: int, until: int) -> int | None:
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
