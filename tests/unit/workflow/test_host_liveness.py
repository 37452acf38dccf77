"""A host is lost if it did not renew its lease during a whole lease of uninterrupted checks by one observer."""

import pytest

from kingdom.workflow.host_liveness import LeaseObservation, LivenessMonitor, boot_time

LEASE = 30.0


class LivenessChecks:
    """A liveness monitor with a clock that the test sets."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at
        self.monitor = LivenessMonitor(lambda: self.at)

    def after(self, seconds: float, **renewals: int) -> set[str]:
        self.at += seconds
        return self.monitor.observe({host: LeaseObservation(count, LEASE) for host, count in renewals.items()})

    def check_every_five_seconds(self, times: int, **renewals: int) -> list[set[str]]:
        return [self.after(5.0, **renewals) for _ in range(times)]


def test_a_host_that_does_not_change_for_a_whole_lease_is_lost() -> None:
    checks = LivenessChecks()
    assert checks.after(0.0, a=1) == set()
    assert checks.check_every_five_seconds(6, a=1) == [set()] * 5 + [{"a"}]


def test_a_host_that_renews_is_never_lost() -> None:
    checks = LivenessChecks()
    for renewals in range(1, 50):
        assert checks.after(9.9, a=renewals) == set()


def test_only_the_host_that_does_not_renew_is_lost() -> None:
    checks = LivenessChecks()
    checks.after(0.0, a=1, b=1)
    lost = [checks.after(5.0, a=1, b=renewals) for renewals in range(2, 8)]
    assert lost == [set()] * 5 + [{"a"}]


def test_the_first_check_of_a_host_does_not_show_how_long_it_was_silent() -> None:
    checks = LivenessChecks(at=1_000_000.0)
    assert checks.after(0.0, a=77) == set()
    checks.check_every_five_seconds(5, a=77)
    assert checks.after(5.0, a=77, b=5) == {"a"}


def test_a_gap_between_checks_restarts_the_lease() -> None:
    checks = LivenessChecks()
    checks.after(0.0, a=1)
    checks.check_every_five_seconds(5, a=1)
    assert checks.after(10.1, a=1) == set()
    assert checks.check_every_five_seconds(6, a=1) == [set()] * 5 + [{"a"}]


def test_a_failed_check_of_the_hosts_restarts_the_lease() -> None:
    checks = LivenessChecks()
    checks.after(0.0, a=1)
    checks.check_every_five_seconds(5, a=1)
    checks.monitor.reset()
    assert checks.check_every_five_seconds(7, a=1) == [set()] * 6 + [{"a"}]


def test_the_lease_restarts_for_a_host_that_was_missing_in_one_check() -> None:
    checks = LivenessChecks()
    checks.after(0.0, a=1)
    checks.after(5.0)
    assert checks.check_every_five_seconds(6, a=1) == [set()] * 6


@pytest.mark.parametrize(("lease", "pause"), [(30.0, 1.0), (3.0, 0.5), (0.0, 0.05)])
def test_checks_are_frequent_enough_for_the_shortest_lease(lease: float, pause: float) -> None:
    monitor = LivenessMonitor(lambda: 0.0)
    assert monitor.pause_seconds(1.0) == 1.0
    monitor.observe({"a": LeaseObservation(1, lease), "b": LeaseObservation(1, 300.0)})
    assert monitor.pause_seconds(1.0) == pause


def test_the_boot_time_never_decreases() -> None:
    assert boot_time() <= boot_time()
