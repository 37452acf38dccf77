from kingdom.verify.checker import check
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import ViolationKind
from tests.unit.verify.trace import Trace, applied, described, stored

FIRST, SECOND = described("a", key="k"), described("b", key="k")


def kinds(evidence: Evidence) -> list[ViolationKind]:
    return [finding.kind for finding in check(evidence)]


def left_in_order(trace: Trace, *events: str) -> Evidence:
    """Return the evidence of a store that gave positions and applied events in the given order."""
    rows = [stored(event, position, key="k") for position, event in enumerate(events)]
    return trace.left(rows, *(applied(event, key="k") for event in events))


def test_a_store_that_reverses_a_transaction_is_found_although_its_positions_are_consistent() -> None:
    trace = Trace().published(FIRST, SECOND)
    assert kinds(left_in_order(trace, "a", "b")) == []
    assert kinds(left_in_order(trace, "b", "a")) == [ViolationKind.ORDER]


def test_a_transaction_that_began_after_the_confirmation_of_another_comes_after_it() -> None:
    trace = Trace().published(FIRST).published(SECOND)
    assert kinds(left_in_order(trace, "a", "b")) == []
    assert kinds(left_in_order(trace, "b", "a")) == [ViolationKind.ORDER]


def test_transactions_at_the_same_time_and_unknown_ends_have_no_order() -> None:
    both = Trace().published(FIRST, end="").published(SECOND).line("published", events=["a"])
    unknown = Trace().published(FIRST, end="publish_unknown").published(SECOND)
    for trace in (both, unknown):
        assert kinds(left_in_order(trace, "a", "b")) == []
        assert kinds(left_in_order(trace, "b", "a")) == []


def test_follow_ups_keep_the_order_in_which_their_reaction_published_them() -> None:
    trace = Trace().published(described("r"))
    rows = [stored("r", 1), stored("b", 2, key="k"), stored("a", 3, key="k")]
    reaction = applied("r", follow_ups=[FIRST, SECOND])
    assert kinds(trace.left(rows, reaction, applied("b", key="k"), applied("a", key="k"))) == [ViolationKind.ORDER]
