from typing import Any

import pytest

from kingdom.verify.checker import check
from kingdom.verify.checks.ownership import stale_settlements
from kingdom.verify.evidence import Evidence
from kingdom.verify.violation import ViolationKind
from kingdom.verify.workload import ANY
from tests.unit.verify.trace import Trace, applied, described, stored


def kinds(evidence: Evidence) -> list[ViolationKind]:
    return [finding.kind for finding in check(evidence)]


def test_a_trial_in_which_everything_went_well_has_no_findings() -> None:
    follow_up = described("b", key="k")
    trace = (
        Trace()
        .published(described("a"), described("c", call="once"), described("p", fate="poison"))
        .published(described("r"), end="rolled_back")
        .published(described("u"), end="publish_unknown")
        .published(described("d"), end="")
        .claimed(1, (1, "a"))
        .settled(1, p1="retry")
        .claimed(2, (1, "a"))
        .settled(2, p1="done")
        .accepted("once", "c")
        .line("exited", process="worker-1.1", code=-9)
    )
    events = [stored("a", 1, token=2), stored("b", 2, key="k"), stored("c", 3), stored("p", 4, status="DEAD")]
    traces = [applied("a", token=2, tally="t", follow_ups=[follow_up]), applied("b", key="k", tally="t"), applied("c")]
    assert check(trace.left(events, *traces, tallies={"t": 2})) == []


def test_a_committed_event_that_is_missing_is_lost() -> None:
    assert kinds(Trace().published(described("a")).left([])) == [ViolationKind.LOST]


def test_an_event_whose_commit_is_unknown_may_be_there_or_not() -> None:
    for end in ("publish_unknown", ""):
        trace = Trace().published(described("a"), end=end)
        assert kinds(trace.left([])) == []
        assert kinds(trace.left([stored("a")], applied("a"))) == []


def test_a_follow_up_of_an_applied_reaction_must_be_in_the_store() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a")], applied("a", follow_ups=[described("b")]))) == [ViolationKind.LOST]


def test_a_done_event_without_the_trace_of_its_reaction_is_lost() -> None:
    assert kinds(Trace().published(described("a")).left([stored("a")])) == [ViolationKind.LOST]


def test_a_done_event_whose_call_never_arrived_is_lost() -> None:
    trace = Trace().published(described("a", call="once"))
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.LOST]


def test_two_events_may_share_one_call() -> None:
    trace = Trace().published(described("a", call="once"), described("b", call="once")).accepted("once", "a")
    assert kinds(trace.left([stored("a", 1), stored("b", 2)], applied("a"))) == []


def test_a_record_that_counts_too_little_has_lost_a_write() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a")], applied("a", tally="t"), tallies={"t": 0})) == [ViolationKind.LOST]


def test_a_reaction_with_two_traces_was_applied_twice() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a")], applied("a"), applied("a"))) == [ViolationKind.TWICE]


def test_a_record_that_counts_too_much_shows_a_reaction_applied_twice() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a")], applied("a", tally="t"), tallies={"t": 2})) == [ViolationKind.TWICE]


def test_a_dedup_key_that_was_taken_before_shows_a_reaction_applied_twice() -> None:
    trace = Trace().published(described("a")).line("once_refused", stream=ANY, event="a", token=2)
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.TWICE]


def test_a_call_that_the_target_did_twice_is_a_repeated_effect() -> None:
    trace = Trace().published(described("a", call="once")).accepted("once", "a", "i").accepted("once", "a", "j")
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.REPEATED]


def test_events_of_one_key_that_were_applied_out_of_order_are_found() -> None:
    trace = Trace().published(described("a", key="k"), described("b", key="k"))
    events = [stored("a", 1, key="k"), stored("b", 2, key="k")]
    assert kinds(trace.left(events, applied("b", key="k"), applied("a", key="k"))) == [
        ViolationKind.ORDER,
        ViolationKind.ORDER,
    ]
    assert kinds(trace.left(events, applied("a", key="k"), applied("b", key="k"))) == []


def test_events_of_different_keys_have_no_order() -> None:
    trace = Trace().published(described("a", key="k"), described("b", key="l"))
    events = [stored("a", 1, key="k"), stored("b", 2, key="l")]
    assert kinds(trace.left(events, applied("b", key="l"), applied("a", key="k"))) == []


def test_calls_of_one_key_that_arrived_out_of_order_are_found() -> None:
    first, second = described("a", key="k", call="one"), described("b", key="k", call="two")
    trace = Trace().published(first, second).accepted("two", "b").accepted("one", "a")
    events = [stored("a", 1, key="k"), stored("b", 2, key="k")]
    assert kinds(trace.left(events, applied("a", key="k"), applied("b", key="k"))) == [
        ViolationKind.ORDER,
        ViolationKind.ORDER,
    ]


def test_a_final_settlement_under_a_token_that_was_not_the_newest_is_stale() -> None:
    trace = Trace().published(described("a")).claimed(1, (1, "a")).claimed(2, (1, "a")).settled(1, p1="done")
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.STALE]


def test_a_final_settlement_before_a_newer_claim_is_stale() -> None:
    trace = Trace().published(described("a")).claimed(1, (1, "a")).settled(1, p1="dead").claimed(2, (1, "a"))
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.STALE]


@pytest.mark.parametrize(
    ("owner", "started", "stale"),
    [
        pytest.param("worker-2.1", True, True, id="handled by another process"),
        pytest.param("worker-2.1", False, False, id="claimed from a partition that belongs to another process"),
        pytest.param("worker-1.1", True, False, id="claimed again by the same process"),
    ],
)
def test_a_settlement_from_a_topic_is_stale_if_another_process_has_handled_the_event(
    owner: str, *, started: bool, stale: bool
) -> None:
    trace = Trace().published(described("a")).handling("started", "a", stream=ANY)
    for token, process in ((1, "worker-1.1"), (2, owner)):
        trace = trace.line("claimed", by=process, token=token, stream=ANY, events=[[1, "a", 1, 0]], in_transport=True)
    if started:
        trace = trace.handling("started", "a", token=2, by=owner, stream=ANY)
    evidence = trace.settled(1, p1="done").left([stored("a")], applied("a"))
    assert [found.kind for found in stale_settlements(evidence)] == [ViolationKind.STALE] * stale


def test_a_retry_under_an_old_token_is_stale_only_if_a_newer_claim_was_there_before() -> None:
    claimed = Trace().published(described("a")).claimed(1, (1, "a")).later(leases=2).claimed(2, (1, "a"))
    left = [stored("a", token=2)]
    assert kinds(claimed.settled(1, began=10**18, p1="retry").left(left, applied("a", token=2))) == [
        ViolationKind.STALE
    ]
    assert kinds(claimed.settled(1, began=1, p1="retry").left(left, applied("a", token=2))) == []


def test_an_event_applied_under_one_token_and_done_under_another_is_stale() -> None:
    trace = Trace().published(described("a"))
    assert kinds(trace.left([stored("a", token=2)], applied("a", token=1))) == [ViolationKind.STALE]


def test_an_event_that_is_not_finished_is_stuck() -> None:
    trace = Trace().published(described("a"), described("b"))
    events = [stored("a", 1, status="PENDING"), stored("b", 2, status="PROCESSING")]
    assert kinds(trace.left(events)) == [ViolationKind.STUCK, ViolationKind.STUCK]


def test_a_healthy_event_that_is_dead_was_quarantined() -> None:
    assert kinds(Trace().published(described("a")).left([stored("a", status="DEAD")])) == [ViolationKind.QUARANTINED]


def test_a_poison_event_that_is_done_or_waits_is_found() -> None:
    for fate in ("poison", "doomed"):
        trace = Trace().published(described("a", fate=fate))
        assert kinds(trace.left([stored("a")])) == [ViolationKind.POISON]
        assert kinds(trace.left([stored("a", status="PENDING")])) == [ViolationKind.STUCK, ViolationKind.POISON]


def test_a_rolled_back_event_in_the_store_was_delivered() -> None:
    trace = Trace().published(described("a"), end="rolled_back")
    assert kinds(trace.left([stored("a")], applied("a"))) == [ViolationKind.ROLLED_BACK]


def test_a_rolled_back_event_that_a_handler_has_seen_was_delivered() -> None:
    trace = Trace().published(described("a"), end="rolled_back").handling("started", "a", stream=ANY)
    assert kinds(trace.left([])) == [ViolationKind.ROLLED_BACK]


def test_a_stored_event_that_was_never_published_is_found() -> None:
    assert kinds(Trace().left([stored("a")])) == [ViolationKind.ROLLED_BACK]


def test_a_broken_invariant_is_found_once_with_its_count() -> None:
    trace = Trace().line("broken", invariant="two heads: k").line("broken", invariant="two heads: k")
    (finding,) = check(trace.left([]))
    assert (finding.kind, finding.subject, finding.detail) == (ViolationKind.INVARIANT, "two heads: k", "seen 2 times")


def test_a_process_that_ends_by_itself_or_not_at_all_is_found() -> None:
    trace = Trace().line("exited", process="worker-1.1", code=1).line("did_not_end", process="worker-2")
    assert kinds(trace.left([])) == [ViolationKind.PROCESS, ViolationKind.PROCESS]
    assert kinds(Trace().line("exited", process="worker-1.1", code=0).left([])) == []


def test_a_working_process_that_ends_without_a_request_is_found() -> None:
    end: dict[str, Any] = {"process": "worker-1.1", "code": 0, "asked": False}
    assert kinds(Trace().line("ready").line("exited", **end).left([])) == [ViolationKind.PROCESS]
    assert kinds(Trace().line("not_opened").line("exited", **end).left([])) == []
