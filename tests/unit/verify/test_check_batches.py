import pytest

from kingdom.verify.checker import check
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY
from tests.unit.verify.trace import Trace, applied, described, stored

BATCH = [described(event) for event in ("a", "b", "c")]


@pytest.mark.parametrize("end", ["publish_unknown", ""])
def test_a_transaction_with_an_unknown_end_is_complete_or_absent(end: str) -> None:
    trace = Trace().published(*BATCH, end=end)
    everything = [stored(event, position) for position, event in enumerate("abc")]
    assert check(trace.left(everything, *map(applied, "abc"))) == []
    assert check(trace.left([])) == []
    (finding,) = check(trace.left(everything[:2], *map(applied, "ab")))
    assert (finding.kind, finding.detail) == (ViolationKind.TORN, "2 of the 3 events of its transaction are there")


def test_a_claimed_event_counts_as_stored_even_if_the_store_lacks_it() -> None:
    trace = Trace().published(*BATCH, end="").claimed(1, (1, "a"), stream=ANY)
    assert [finding.kind for finding in check(trace.left([]))] == [ViolationKind.TORN]
