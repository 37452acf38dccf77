"""The report of a trial."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kingdom.verify.checker import check
from kingdom.verify.evidence import SECOND_NS, Evidence
from kingdom.verify.violation import Violation, ViolationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """One injected fault. `at_seconds` counts from the first action of the history."""

    at_seconds: float
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """The summary of a trial and the violations that it found.

    `actions` counts the history entries by name, `statuses` the events by their final status.
    """

    seed: int
    seconds: float
    drained_seconds: float
    actions: Mapping[str, int]
    statuses: Mapping[str, int]
    faults: Sequence[InjectedFault]
    violations: Sequence[Violation]

    @property
    def ok(self) -> bool:
        """Return whether there is no violation."""
        return not self.violations

    @property
    def faults_by_kind(self) -> dict[str, int]:
        """Return the number of faults of each kind."""
        return dict(Counter(fault.kind for fault in self.faults))

    @property
    def violations_by_kind(self) -> dict[str, int]:
        """Return the number of violations of each kind, including zeros."""
        found = Counter(violation.kind for violation in self.violations)
        return {kind.value: found[kind] for kind in ViolationKind}


def build_report(evidence: Evidence, *, seed: int, seconds: float, drained_seconds: float) -> TrialReport:
    """Check the evidence and return the report."""
    start = evidence.history[0].at if evidence.history else 0
    faults = [
        InjectedFault(
            at_seconds=(entry.at - start) / SECOND_NS,
            kind=entry.facts["kind"],
            detail=", ".join(f"{name} {value}" for name, value in entry.facts.items() if name != "kind"),
        )
        for entry in evidence.history
        if entry.what == "fault"
    ]
    return TrialReport(
        seed=seed,
        seconds=seconds,
        drained_seconds=drained_seconds,
        actions=dict(sorted(Counter(entry.what for entry in evidence.history).items())),
        statuses=dict(sorted(Counter(event.status for event in evidence.events).items())),
        faults=faults,
        violations=check(evidence),
    )
