from kingdom.verify.checker import check
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY, LINE
from tests.unit.verify.trace import LEASE, Trace, applied, described, stored

NOW = 1_800_000_000.0
LEASE_SECONDS = LEASE.total_seconds()


def kinds(evidence: Evidence) -> list[ViolationKind]:
    return [finding.kind for finding in check(evidence)]


def test_every_named_stream_gets_its_copy() -> None:
    trace = Trace().published(described("a", key="k", streams=[ANY, LINE]))
    copies = [stored("a", 1), stored("a", 2, key="k")]
    traces = [applied("a"), applied("a", key="k")]
    assert kinds(trace.left(copies, *traces)) == []
    assert kinds(trace.left(copies[:1], *traces[:1])) == [ViolationKind.LOST]
    assert kinds(trace.left(copies, *traces[:1])) == [ViolationKind.LOST]
    assert kinds(trace.left(copies, *traces, traces[1])) == [ViolationKind.TWICE]


def test_an_id_that_a_stream_has_twice_is_found() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a", 1), stored("a", 2)], applied("a"))) == [ViolationKind.DOUBLED]
    given = trace.claimed(1, (7, "a")).settled(1, p7="done")
    assert kinds(given.left([stored("a", 8)], applied("a"))) == [ViolationKind.DOUBLED]


def test_publishing_an_id_again_reports_a_duplicate() -> None:
    trace = Trace().published(described("a", key="k", streams=[ANY, LINE]))
    left = [stored("a", 1), stored("a", 2, key="k")], applied("a"), applied("a", key="k")
    for duplicates, found in (([[ANY, "a"], [LINE, "a"]], []), ([[ANY, "a"]], [ViolationKind.DOUBLED])):
        again = trace.line("published", events=[], again=["a"], duplicates=duplicates)
        assert kinds(again.left(*left)) == found


def test_a_position_of_two_events_is_found() -> None:
    trace = Trace().published(described("a"), described("b"))
    assert kinds(trace.left([stored("a", 1), stored("b", 1)], applied("a"), applied("b"))) == [ViolationKind.DOUBLED]


def claimed_after(leases: float, *faults: str) -> list[ViolationKind]:
    """Return the violations if an event that is due in two leases is claimed after the given number of leases."""
    due = NOW + 2 * LEASE_SECONDS
    trace = Trace().line("clock", asked=0, store=NOW).published(described("a", due=due)).later(leases=leases)
    trace = trace.claimed(1, (1, "a")).settled(1, p1="done")
    for kind in faults:
        trace = trace.line("fault", kind=kind, seconds=LEASE_SECONDS)
    return kinds(trace.left([stored("a")], applied("a")))


def test_a_delayed_event_must_not_be_claimed_before_its_time_by_the_clock_of_the_store() -> None:
    assert claimed_after(2) == []
    assert claimed_after(1) == [ViolationKind.EARLY]
    assert claimed_after(1, "server_killed") == [ViolationKind.EARLY]


def test_early_claims_are_not_reported_while_a_fault_has_changed_the_clock() -> None:
    assert claimed_after(1, "clock_forward") == []


def test_exactly_one_reaction_must_win_a_contested_dedup_key() -> None:
    trace = Trace().published(described("a"), described("b"))
    events = [stored("a", 1), stored("b", 2)]
    for winners, found in (("a", []), ("ab", [ViolationKind.CONTEST]), ("", [ViolationKind.CONTEST])):
        traces = [applied(event, contest="c", won=event in winners) for event in "ab"]
        assert kinds(trace.left(events, *traces)) == found
