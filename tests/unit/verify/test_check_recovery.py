import pytest

from kingdom.verify.checker import check
from kingdom.verify.violation import ViolationKind
from tests.unit.verify.trace import Trace, applied, described, stored

ONE, TWO = "worker-1.1", "worker-2.2"


def recovered(
    after_leases: float, *, others_waited: float = 0, late_seconds: float = 0, alone_for: float = 0
) -> list[ViolationKind]:
    """Return the violations if the event of a killed worker gets a new holder after the given number of leases."""
    trace = Trace().published(described("a"), described("other")).claimed(1, (1, "a"), by=ONE)
    trace = trace.later(leases=others_waited).line("exited", process=ONE, code=-9)
    trace = trace.later(leases=alone_for).line("ready", by=TWO)
    trace = trace.claimed(2, (2, "other"), by=TWO).settled(2, p2="done")
    if late_seconds:
        trace = trace.line("late", seconds=late_seconds)
    trace = trace.later(leases=after_leases).claimed(3, (1, "a"), by=TWO).settled(3, p1="done")
    events = [stored("a", 1, token=3), stored("other", 2, token=2)]
    return [finding.kind for finding in check(trace.left(events, applied("a", token=3), applied("other", token=2)))]


def test_events_of_a_killed_worker_have_another_holder_within_a_few_leases() -> None:
    assert recovered(3) == []
    assert recovered(30) == [ViolationKind.SLOW]


def test_time_without_a_running_worker_does_not_count_as_recovery_time() -> None:
    assert recovered(3, alone_for=10) == []
    assert recovered(30, alone_for=10) == [ViolationKind.SLOW]


def test_the_waiting_time_of_other_events_and_delays_of_the_machine_extend_the_limit() -> None:
    assert recovered(6, others_waited=3) == []
    assert recovered(8, others_waited=3) == [ViolationKind.SLOW]
    assert recovered(6, late_seconds=5) == []


@pytest.mark.parametrize(("after_leases", "found"), [(2, []), (6, [ViolationKind.SLOW])])
def test_the_recovery_time_of_a_stopped_worker_counts_from_the_end_of_the_stop(
    after_leases: float, found: list[ViolationKind]
) -> None:
    trace = Trace().line("ready", by=TWO).published(described("a")).claimed(1, (1, "a"), by=ONE)
    trace = trace.line("fault", kind="stop", process="worker-1", seconds=20).later(leases=10)
    trace = trace.line("continued", process="worker-1").later(leases=after_leases)
    trace = trace.claimed(2, (1, "a"), by=TWO).settled(2, p1="done")
    assert [each.kind for each in check(trace.left([stored("a", token=2)], applied("a", token=2)))] == found


def test_events_after_the_first_of_their_key_wait_for_it() -> None:
    line = "verify.line"
    trace = Trace().line("ready", by=TWO).published(described("a", key="k"), described("b", key="k"))
    trace = trace.claimed(1, (1, "a"), (2, "b"), by=ONE, stream=line).line("exited", process=ONE, code=-9)
    trace = trace.later(leases=2).claimed(2, (1, "a"), by=TWO, stream=line).settled(2, p1="done")
    trace = trace.later(leases=9).claimed(3, (2, "b"), by=TWO, stream=line).settled(3, p2="done")
    events = [stored("a", 1, key="k", token=2), stored("b", 2, key="k", token=3)]
    assert check(trace.left(events, applied("a", key="k", token=2), applied("b", key="k", token=3))) == []


def test_a_lease_counts_as_recovered_when_the_first_of_its_events_has_another_holder() -> None:
    trace = Trace().line("ready", by=TWO).published(described("a"), described("b"))
    trace = trace.claimed(1, (1, "a"), (2, "b"), by=ONE).line("exited", process=ONE, code=-9)
    trace = trace.later(leases=2).claimed(2, (1, "a"), by=TWO).settled(2, p1="done")
    trace = trace.later(leases=9).claimed(3, (2, "b"), by=TWO).settled(3, p2="done")
    assert (
        check(
            trace.left([stored("a", 1, token=2), stored("b", 2, token=3)], applied("a", token=2), applied("b", token=3))
        )
        == []
    )
