import pytest

from kingdom.verify.checker import check
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY
from tests.unit.verify.trace import Trace, applied, described, stored


def sent(*steps: str) -> list[ViolationKind]:
    """Return the violations if a target without idempotency treated its requests in these ways."""
    trace = Trace().published(described("a", call="c", idempotency="nothing", fate="open"))
    for step in steps:
        trace = trace.line("received", by="target", key="c", identifier="i", fence=1, step=step)
    return [finding.kind for finding in check(trace.left([stored("a", status="DEAD")]))]


def test_a_target_without_idempotency_is_called_again_only_after_a_refusal() -> None:
    assert sent("throttle", "throttle_for_a_second", "fail") == []
    assert sent("fail", "accept") == [ViolationKind.REPEATED]


@pytest.mark.parametrize(("idempotency", "found"), [("time", []), ("identifier", [ViolationKind.REPEATED])])
def test_a_stopped_sender_excuses_a_repeated_call_only_with_idempotency_by_time(
    idempotency: str, found: list[ViolationKind]
) -> None:
    trace = Trace().published(described("a", call="c", idempotency=idempotency)).handling("started", "a", stream=ANY)
    stopped = trace.line("fault", kind="stop", process="worker-1", seconds=3)

    def judged(history: Trace) -> list[ViolationKind]:
        twice = history.accepted("c", "a", "i").accepted("c", "a", "j")
        return [finding.kind for finding in check(twice.left([stored("a")], applied("a", call="c")))]

    assert judged(stopped) == found
    assert judged(trace.line("fault", kind="kill", process="worker-1")) == [ViolationKind.REPEATED]


def test_an_accepted_call_is_closed_once_by_an_event_or_by_proof() -> None:
    trace = Trace().published(described("a", call="c"), described("closing")).accepted("c", "a")
    events = [stored("a", 1), stored("closing", 2)]
    proof = applied("a", call="c")
    for closed, traces, found in (
        (True, [], []),
        (False, [proof], []),
        (False, [], [ViolationKind.UNCLOSED]),
        (True, [proof], [ViolationKind.UNCLOSED]),
    ):
        evidence = trace.left(events, *traces, applied("closing", closes="c", closed=closed))
        assert [finding.kind for finding in check(evidence)] == found
