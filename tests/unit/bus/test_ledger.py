from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from kingdom.bus import EFFECTS, Accepted, Acked, Idempotency, Present, Rejected, Target, Throttled, Unknown
from kingdom.bus.effects.ledger import Ledger, LedgerAttempt

LATER = Throttled(timedelta(seconds=5), "HTTP 429")
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
EVERY_IDEMPOTENCY = list(Idempotency)


def opened() -> Ledger:
    return Ledger.open("key", "target", {"a": 1}, "owner")


def entries(ledger: Ledger) -> list[tuple[int, str]]:
    return [(entry.number, entry.state) for entry in ledger.document.attempts]


def identifiers(ledger: Ledger) -> list[str]:
    return [entry.identifier for entry in ledger.document.attempts]


def test_an_effect_begins_prepared_and_is_not_stored_yet() -> None:
    ledger = opened()
    assert entries(ledger) == [(1, "PREPARED")]
    record = ledger.record
    assert (record.kind, record.id, record.indexed, record.version) == ("effect", "key", {"owner": "owner"}, 0)
    assert not ledger.finished
    assert not ledger.must_reconcile


def test_a_sent_attempt_has_the_fence_of_its_delivery_and_must_be_reconciled() -> None:
    ledger = opened().record_sent(7)
    assert entries(ledger) == [(1, "SENT")]
    assert ledger.latest.fence == 7
    assert ledger.must_reconcile
    assert not ledger.finished


@pytest.mark.parametrize("idempotency", EVERY_IDEMPOTENCY)
def test_acked_ends_the_effect_with_its_response(idempotency: Idempotency) -> None:
    ledger = opened().record_sent(1).record_result(Acked({"id": 9}), idempotency)
    assert entries(ledger) == [(1, "ACKED")]
    assert ledger.document.response == {"id": 9}
    assert ledger.unconcluded_result == Acked({"id": 9})
    assert not ledger.finished
    assert ledger.conclude().finished


@pytest.mark.parametrize("idempotency", EVERY_IDEMPOTENCY)
def test_rejected_ends_the_effect_with_its_reason(idempotency: Idempotency) -> None:
    ledger = opened().record_sent(1).record_result(Rejected("no money"), idempotency)
    assert entries(ledger) == [(1, "REJECTED")]
    assert ledger.latest.note == "no money"
    assert ledger.unconcluded_result == Rejected("no money")


def test_a_refused_and_concluded_call_can_be_reopened_with_another_request() -> None:
    refused = opened().record_sent(1).record_result(Rejected("no money"), Idempotency.IDENTIFIER).conclude()
    again = refused.reopen({"amount": 2})
    assert not refused.finished
    assert entries(again) == [(1, "REJECTED"), (2, "PREPARED")]
    assert again.attempt(9).request == {"amount": 2}
    assert again.latest.identifier != refused.latest.identifier
    assert again.unconcluded_result is None


def test_accepted_waits_for_an_event_and_is_closed_by_it() -> None:
    waiting = opened().record_sent(1).record_result(Accepted(), Idempotency.NOTHING)
    assert entries(waiting) == [(1, "SENT")]
    assert waiting.finished
    for answer, state in ((Acked(), "ACKED"), (Rejected("late no"), "REJECTED")):
        closed = waiting.record_result(answer, Idempotency.NOTHING).conclude()
        assert entries(closed) == [(1, state)]
        assert not closed.document.awaiting
        assert closed.finished is (state == "ACKED")


@pytest.mark.parametrize("idempotency", EVERY_IDEMPOTENCY)
def test_a_throttled_call_opens_the_next_attempt_with_a_new_identifier(idempotency: Idempotency) -> None:
    ledger = opened().record_sent(1).record_result(LATER, idempotency)
    assert entries(ledger) == [(1, "THROTTLED"), (2, "PREPARED")]
    assert ledger.document.attempts[0].note == "HTTP 429"
    assert len(set(identifiers(ledger))) == 2
    assert not ledger.must_reconcile
    assert not ledger.finished


@pytest.mark.parametrize("idempotency", EVERY_IDEMPOTENCY)
def test_unknown_keeps_its_attempt_and_must_be_reconciled(idempotency: Idempotency) -> None:
    ledger = opened().record_sent(1).record_result(Unknown("timeout"), idempotency)
    assert entries(ledger) == [(1, "UNKNOWN")]
    assert ledger.must_reconcile
    assert not ledger.finished


@pytest.mark.parametrize("state", ["SENT", "UNKNOWN"])
def test_proof_that_it_happened_ends_the_effect(state: str) -> None:
    sent = opened().record_sent(1)
    ledger = sent if state == "SENT" else sent.record_result(Unknown("timeout"), Idempotency.NOTHING)
    found = ledger.record_proof(Present({"id": 9}))
    assert entries(found) == [(1, "ACKED")]
    assert found.document.response == {"id": 9}
    assert found.conclude().finished


def test_absence_does_not_allow_a_second_call_without_idempotency() -> None:
    assert opened().record_sent(1).prepare_resend(2, Idempotency.NOTHING) is None


def test_an_absent_call_keeps_its_identifier_if_the_target_deduplicates_by_it() -> None:
    ledger = opened().record_sent(1).prepare_resend(2, Idempotency.IDENTIFIER)
    assert ledger is not None
    assert entries(ledger) == [(1, "UNKNOWN"), (2, "PREPARED")]
    assert len(set(identifiers(ledger))) == 1
    assert ledger.latest.inherited


def test_an_absent_call_takes_a_new_identifier_if_the_target_checks_the_fence() -> None:
    ledger = opened().record_sent(1).prepare_resend(2, Idempotency.FENCE)
    assert ledger is not None
    assert entries(ledger) == [(1, "UNKNOWN"), (2, "PREPARED")]
    assert len(set(identifiers(ledger))) == 2
    assert not ledger.latest.inherited


@pytest.mark.parametrize("fence", [4, 5])
def test_an_absent_call_is_not_sent_again_without_a_higher_fence(fence: int) -> None:
    assert opened().record_sent(5).prepare_resend(fence, Idempotency.FENCE) is None


def test_an_absent_call_is_sent_again_only_after_the_time_limit_and_only_by_a_later_sender() -> None:
    target = Target(name="slow", idempotency=Idempotency.TIME, settles_after=timedelta(seconds=10))
    ledger = opened().record_sent(5, NOON)
    assert ledger.remaining_wait(target, NOON + timedelta(seconds=4)) == timedelta(seconds=6)
    assert ledger.remaining_wait(target, NOON + timedelta(seconds=10)) is None
    assert ledger.prepare_resend(5, Idempotency.TIME) is None
    again = ledger.prepare_resend(6, Idempotency.TIME)
    assert again is not None
    assert len(set(identifiers(again))) == 2


def test_only_idempotency_by_time_needs_a_wait_before_a_resend() -> None:
    ledger = opened().record_sent(5, NOON)
    for idempotency in set(Idempotency) - {Idempotency.TIME}:
        assert ledger.remaining_wait(Target(name="other", idempotency=idempotency), NOON) is None


def test_an_inherited_identifier_is_kept_when_throttled_because_its_first_sender_may_still_use_it() -> None:
    inherited = opened().record_sent(1).prepare_resend(2, Idempotency.IDENTIFIER)
    assert inherited is not None
    ledger = inherited.record_sent(2).record_result(LATER, Idempotency.IDENTIFIER)
    assert entries(ledger) == [(1, "UNKNOWN"), (2, "THROTTLED"), (3, "PREPARED")]
    assert len(set(identifiers(ledger))) == 1
    assert ledger.latest.inherited


def test_an_attempt_carries_the_first_request_and_the_fence_of_the_present_delivery() -> None:
    ledger = opened().record_sent(1)
    attempt = ledger.attempt(9)
    assert (attempt.number, attempt.request, attempt.fence) == (1, {"a": 1}, 9)
    assert attempt.identifier == ledger.latest.identifier


def test_the_record_kind_of_ledgers_declares_every_state_and_the_final_ones() -> None:
    assert set(EFFECTS.directories) == {"PREPARED", "SENT", "ACKED", "REJECTED", "THROTTLED", "UNKNOWN"}
    assert EFFECTS.final == {"ACKED", "REJECTED"}
    assert EFFECTS.retention is not None


def test_a_ledger_keeps_only_its_first_and_its_newest_attempts() -> None:
    ledger = opened()
    for fence in range(1, 1441):
        ledger = ledger.record_sent(fence, NOON).record_result(LATER, Idempotency.IDENTIFIER)
    assert [number for number, _ in entries(ledger)] == [1, *range(1422, 1442)]
    assert len(json.encode(ledger.record.doc)) < 5000


steps = st.lists(
    st.sampled_from(["send", "ack", "accept", "reject", "throttle", "unknown", "absent", "found"]), max_size=20
)


def step(ledger: Ledger, what: str, fence: int, idempotency: Idempotency) -> Ledger:
    """Apply a step if `perform` could take it in this state."""
    if what == "send":
        return ledger.record_sent(fence) if ledger.latest.state == "PREPARED" else ledger
    if not ledger.must_reconcile or ledger.finished:
        return ledger
    answers: dict[str, Any] = {
        "ack": Acked({"id": 1}),
        "accept": Accepted(),
        "reject": Rejected("no"),
        "throttle": LATER,
        "unknown": Unknown("?"),
    }
    if what == "absent":
        return ledger.prepare_resend(fence, idempotency) or ledger
    if what == "found":
        return ledger.record_proof(Present())
    # Only the sender gets a result.
    return ledger.record_result(answers[what], idempotency) if ledger.latest.state == "SENT" else ledger


@given(steps, st.sampled_from(EVERY_IDEMPOTENCY))
def test_under_random_operations_the_history_only_grows_and_no_identifier_is_sent_twice_without_proof(
    plan: list[str], idempotency: Idempotency
) -> None:
    ledger, history = opened(), tuple[LedgerAttempt, ...]()
    for fence, what in enumerate(plan, start=1):
        ledger = step(ledger, what, fence, idempotency)
        earlier = ledger.document.attempts[: len(history)]
        assert [(e.number, e.identifier) for e in earlier] == [(e.number, e.identifier) for e in history]
        history = ledger.document.attempts
        assert [entry.number for entry in history] == list(range(1, len(history) + 1))
        assert ledger.record.state == history[-1].state
        if ledger.record.doc:
            assert Ledger.read(ledger.record) == ledger
        if idempotency is not Idempotency.IDENTIFIER:
            assert len({entry.identifier for entry in history}) == len(history)
        if idempotency is Idempotency.NOTHING:
            assert all(entry.state == "THROTTLED" for entry in history[:-1])
