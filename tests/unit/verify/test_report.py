from kingdom.verify.report import build_report
from kingdom.verify.violation import ViolationKind
from tests.unit.verify.trace import Trace, applied, described, stored


def test_a_report_counts_actions_faults_and_findings_and_shows_the_zeros() -> None:
    trace = (
        Trace()
        .published(described("a"))
        .line("fault", kind="kill", process="worker-1")
        .line("fault", kind="stop", process="worker-2", seconds=3)
    )
    evidence = trace.left([stored("a", status="PENDING")])
    report = build_report(evidence, seed=7, seconds=10, drained_seconds=1)
    assert not report.ok
    assert report.actions == {"fault": 2, "published": 1, "publishing": 1}
    assert report.statuses == {"PENDING": 1}
    assert report.faults_by_kind == {"kill": 1, "stop": 1}
    assert report.violations_by_kind == {kind.value: int(kind is ViolationKind.STUCK) for kind in ViolationKind}
    assert [fault.detail for fault in report.faults] == ["process worker-1", "process worker-2, seconds 3"]
    assert [violation.detail for violation in report.violations] == ["verify.any position 1 is still PENDING"]


def test_a_report_without_findings_is_ok() -> None:
    report = build_report(
        Trace().published(described("a")).left([stored("a")], applied("a")), seed=7, seconds=10, drained_seconds=1
    )
    assert report.ok
