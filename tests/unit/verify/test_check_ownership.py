from kingdom.verify.checker import check
from kingdom.verify.evidence import SECOND_NS, Evidence
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY, LINE
from tests.unit.verify.trace import LEASE, Trace, applied, described, stored

ONE, TWO = "worker-1.1", "worker-2.2"


def judged(trace: Trace) -> list[ViolationKind]:
    """Return the violations, given that both events of a key ended correctly."""
    return [finding.kind for finding in check(with_both_events(trace))]


def with_both_events(trace: Trace) -> Evidence:
    rows = [stored("a", 1, key="k", token=2), stored("b", 2, key="k", token=3)]
    return trace.left(rows, applied("a", key="k", token=2), applied("b", key="k", token=3))


def published() -> Trace:
    return Trace().published(described("a", key="k"), described("b", key="k"))


def both_at_once(trace: Trace) -> Trace:
    """Record two workers that handle two events of one key at overlapping times."""
    return (
        trace.claimed(2, (1, "a"), by=ONE, stream=LINE)
        .claimed(3, (2, "b"), by=TWO, stream=LINE)
        .handling("started", "a", token=2, by=ONE)
        .handling("started", "b", token=3, by=TWO)
        .handling("finished", "a", token=2, by=ONE)
        .handling("finished", "b", token=3, by=TWO)
    )


def test_two_healthy_handlers_of_one_key_never_overlap() -> None:
    one_after_another = (
        published()
        .handling("started", "a", token=2, by=ONE)
        .handling("finished", "a", token=2, by=ONE)
        .handling("started", "b", token=3, by=TWO)
        .handling("finished", "b", token=3, by=TWO)
    )
    assert judged(one_after_another) == []
    assert judged(both_at_once(published())) == [ViolationKind.OVERLAP]


def test_two_handlers_of_one_event_without_a_key_must_not_overlap() -> None:
    trace = Trace().published(described("a"))
    for what in ("started", "finished"):
        for worker in (ONE, TWO):
            trace = trace.handling(what, "a", by=worker, stream=ANY)
    assert [finding.kind for finding in check(trace.left([stored("a")], applied("a")))] == [ViolationKind.OVERLAP]


def test_handlers_of_different_keys_may_overlap() -> None:
    trace = Trace().published(described("a", key="k"), described("b", key="l"))
    events = [stored("a", 1, key="k", token=2), stored("b", 2, key="l", token=3)]
    traces = [applied("a", key="k", token=2), applied("b", key="l", token=3)]
    assert check(both_at_once(trace).left(events, *traces)) == []


def test_a_handler_may_overlap_with_the_next_holder_only_after_its_lease_has_ended() -> None:
    held = published().claimed(2, (1, "a"), by=ONE, stream=LINE).handling("started", "a", token=2, by=ONE)
    for leases, found in ((0.9, [ViolationKind.OVERLAP]), (1.1, [])):
        trace = held.later(leases=leases).claimed(3, (2, "b"), by=TWO, stream=LINE)
        trace = trace.handling("started", "b", token=3, by=TWO).handling("finished", "a", token=2, by=ONE)
        assert judged(trace) == found


def test_the_handler_of_a_killed_process_ends_with_the_last_entry_of_the_process() -> None:
    trace = published().claimed(2, (1, "a"), by=ONE, stream=LINE).handling("started", "a", token=2, by=ONE)
    trace = trace.claimed(3, (2, "b"), by=TWO, stream=LINE).handling("started", "b", token=3, by=TWO)
    assert judged(trace) == []


def test_two_handlers_of_one_lease_and_key_must_not_overlap() -> None:
    trace = published().claimed(2, (1, "a"), (2, "b"), by=ONE, stream=LINE)
    for what in ("started", "finished"):
        for event in ("a", "b"):
            trace = trace.handling(what, event, token=2, by=ONE)
    events = [stored("a", 1, key="k", token=2), stored("b", 2, key="k", token=2)]
    traces = [applied("a", key="k", token=2), applied("b", key="k", token=2)]
    assert [each.kind for each in check(trace.left(events, *traces))] == [ViolationKind.OVERLAP]


def given_again(trace: Trace) -> list[ViolationKind]:
    """Return the violations if a second worker gets an event while the first one is still alive."""
    trace = trace.claimed(2, (1, "a"), by=TWO, stream=LINE).settled(2, p1="done")
    return judged(trace.line("lease_lost", by=ONE, tokens=[1]))


def test_the_event_of_a_living_worker_must_not_be_claimed_again_before_its_lease_ends() -> None:
    held = published().claimed(1, (1, "a"), by=ONE, stream=LINE)
    assert given_again(held.later(leases=0.9)) == [ViolationKind.TAKEN]
    assert given_again(held.later(leases=1.1)) == []


def test_a_confirmed_renewal_extends_the_lease() -> None:
    held = published().claimed(1, (1, "a"), by=ONE, stream=LINE).later(leases=0.5)
    half = int(LEASE.total_seconds() * SECOND_NS / 2)
    renewed = held.line("renewed", by=ONE, asked=half, tokens=[1])
    assert given_again(renewed.later(leases=0.9)) == [ViolationKind.TAKEN]
    assert given_again(renewed.later(leases=1.1)) == []


def test_an_event_that_may_have_been_settled_can_be_claimed_by_another_worker() -> None:
    held = published().claimed(1, (1, "a"), by=ONE, stream=LINE)
    assert given_again(held.settled(1, p1="retry")) == []
    assert given_again(held.line("settling", token=1, began=0, outcomes={"1": "done"})) == []
    refused = held.line("settling", token=1, began=0, outcomes={"1": "done"})
    assert given_again(refused.line("not_settled", token=1, began=0, outcomes={"1": "done"})) == [ViolationKind.TAKEN]
    assert given_again(held.settled(1, p2="retry")) == [ViolationKind.TAKEN]


def test_a_settlement_whose_answer_was_lost_may_have_happened_although_its_repetition_is_refused() -> None:
    held = published().claimed(1, (1, "a"), by=ONE, stream=LINE)
    repeated = held
    for began in (0, 1):
        repeated = repeated.line("settling", token=1, began=began, outcomes={"1": "retry"})
    assert given_again(repeated.line("not_settled", token=1, began=1, outcomes={"1": "retry"})) == []


def test_the_event_of_a_process_without_later_entries_can_be_claimed_again() -> None:
    held = published().claimed(1, (1, "a"), by=ONE, stream=LINE)
    assert (
        judged(
            held.claimed(2, (1, "a"), by=TWO, stream=LINE).line(
                "settled", by=TWO, token=2, began=9, outcomes={"1": "done"}
            )
        )
        == []
    )
