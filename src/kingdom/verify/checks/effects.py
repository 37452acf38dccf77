"""Outside calls happen once."""

from collections.abc import Iterator

from kingdom.verify.evidence import Evidence
from kingdom.verify.finding import Finding, Kind


def repeated(evidence: Evidence) -> Iterator[Finding]:
    """Look for calls that the target did more than once."""
    for call, times in evidence.accepted.items():
        if len(times) > 1:
            how = ", ".join(f"{facts['identifier']} under fence {facts['fence']}" for facts in times)
            yield Finding(Kind.REPEATED, call, f"the target did it {len(times)} times: {how}")
