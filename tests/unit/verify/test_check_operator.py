from typing import Any

from kingdom.verify.checker import check
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY, BLOCKING, PAUSED
from tests.unit.verify.trace import Trace, applied, described, stored

OF_A = {"stream": ANY, "event": "a"}


def kinds(evidence: Evidence) -> list[ViolationKind]:
    return [finding.kind for finding in check(evidence)]


def asked(trace: Trace, before: str, after: str, **facts: Any) -> Trace:
    """Record a request of an operator and its confirmation."""
    return trace.line(before, by="trial", **facts).line(after, by="trial", **facts)


def test_an_event_cancelled_while_it_waited_never_runs() -> None:
    trace = Trace().published(described("a", fate="open"))
    cancelled = asked(trace, "cancelling", "cancelled", answer="cancelled", **OF_A)
    dead = [stored("a", status="DEAD", error_code="cancelled")]
    assert kinds(cancelled.left(dead)) == []
    assert kinds(cancelled.handling("started", "a", stream=ANY).left(dead)) == [ViolationKind.DISOBEYED]
    assert kinds(cancelled.left([stored("a")], applied("a"))) == [ViolationKind.POISON]


def test_an_event_cancelled_while_it_ran_is_done_or_dead_but_not_both() -> None:
    trace = Trace().published(described("a", fate="open")).handling("started", "a", stream=ANY)
    requested = asked(trace, "cancelling", "cancelled", answer="requested", **OF_A)
    dead = [stored("a", status="DEAD", error_code="cancelled")]
    assert kinds(requested.left(dead)) == []
    assert kinds(requested.left([stored("a")], applied("a"))) == []
    assert kinds(requested.left(dead, applied("a"))) == [ViolationKind.DISOBEYED]


def test_a_discarded_event_never_runs_again() -> None:
    trace = Trace().published(described("a", fate="doomed")).handling("started", "a", stream=ANY)
    discarded = asked(trace, "discarding", "discarded", **OF_A)
    assert kinds(discarded.left([stored("a", status="DISCARDED")])) == []
    assert kinds(discarded.left([stored("a", status="DEAD")])) == [ViolationKind.DISOBEYED]
    again = discarded.handling("started", "a", stream=ANY)
    assert kinds(again.left([stored("a", status="DISCARDED")])) == [ViolationKind.DISOBEYED]


def test_a_claim_on_a_paused_stream_is_allowed_only_if_it_was_requested_before_the_pause() -> None:
    trace = Trace().published(described("a", streams=[PAUSED]))

    def judged(*steps: str) -> list[ViolationKind]:
        history = trace
        for step in steps:
            if step.startswith("claimed"):
                at = 0 if step == "claimed early" else 10**18
                rows = [[1, "a", 1, 0]]
                history = history.line("claimed", token=1, stream=PAUSED, asked=at, events=rows)
            else:
                history = history.line(step, by="trial", stream=PAUSED)
        facts = applied("a") | {"stream": PAUSED}
        return kinds(history.settled(1, p1="done").left([stored("a", stream=PAUSED)], facts))

    assert judged("pausing", "paused", "claimed") == [ViolationKind.DISOBEYED]
    assert judged("pausing", "paused", "claimed early") == []
    assert judged("pausing", "paused", "resuming", "claimed", "resumed") == []
    assert judged("pausing", "claimed") == []


def test_a_redriven_event_is_handled_again() -> None:
    dead = Trace().published(described("a", fate="doomed")).handling("started", "a", stream=ANY)
    redriven = asked(dead, "redriving", "redriven", mended=False, position=1, **OF_A)
    left = [stored("a", status="DEAD")]
    assert kinds(redriven.left(left)) == [ViolationKind.NOT_REDRIVEN]
    assert kinds(redriven.handling("started", "a", stream=ANY).left(left)) == []


def test_a_dead_event_that_was_repaired_and_redriven_must_be_done() -> None:
    trace = asked(Trace().published(described("a", fate="doomed")), "redriving", "redriven", mended=True, **OF_A)
    run = trace.handling("started", "a", stream=ANY)
    assert kinds(run.left([stored("a")], applied("a"))) == []
    assert kinds(run.left([stored("a")])) == [ViolationKind.LOST]
    assert kinds(run.left([stored("a", status="DEAD")])) == [ViolationKind.QUARANTINED]


def test_an_unconfirmed_request_may_have_taken_effect_or_not() -> None:
    trace = Trace().published(described("a", fate="doomed")).line("redriving", mended=True, **OF_A)
    assert kinds(trace.left([stored("a", status="DEAD")])) == []
    assert kinds(trace.left([stored("a")], applied("a"))) == []


def blocked(*steps: tuple[str, str]) -> list[ViolationKind]:
    """Return the violations in a blocked key after its first event has died."""
    trace = Trace().published(
        described("a", key="k", fate="doomed", streams=[BLOCKING]), described("b", key="k", streams=[BLOCKING])
    )
    trace = trace.claimed(1, (1, "a"), stream=BLOCKING)
    if steps[0][0] != "discarding":
        trace = trace.settled(1, began=2, p1="dead")
    for what, event in steps:
        if what == "settled":
            trace = trace.settled(1, began=2, p1="dead")
            continue
        trace = trace.line(what, stream=BLOCKING, event=event, token=1, mended=False)
    discarded = ("discarding", "a") in steps
    status = "DISCARDED" if discarded else "DEAD"
    events = [stored("a", 1, key="k", stream=BLOCKING, status=status), stored("b", 2, key="k", stream=BLOCKING)]
    return kinds(trace.left(events, applied("b") | {"stream": BLOCKING}))


def test_a_dead_event_that_blocks_its_key_holds_all_later_ones_until_an_operator_decides() -> None:
    assert blocked(("started", "b")) == [ViolationKind.OVERTAKEN]
    assert blocked(("redriving", "a"), ("started", "a"), ("finished", "a"), ("started", "b")) == []


def test_an_operator_may_decide_before_the_worker_has_recorded_the_dead_event() -> None:
    assert blocked(("discarding", "a"), ("settled", "a"), ("started", "b")) == []
