from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kingdom.bus.operations import Situation
from kingdom.bus.why import why
from kingdom.ids import new_event_id

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
EVENT, OTHER = new_event_id(), new_event_id()


def local(moment: datetime) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def situation(**facts: Any) -> Situation:
    known: dict[str, Any] = {
        "event_id": EVENT,
        "stream": "jobs",
        "type": "Job",
        "status": "PENDING",
        "attempt": 0,
        "max_attempts": 10,
        "crash_count": 0,
        "now": NOW,
        "due_at": NOW - timedelta(minutes=1),
    }
    return Situation(**(known | facts))


LATER, EARLIER = NOW + timedelta(hours=1), NOW - timedelta(hours=1)

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "due": (
        {},
        f"It has been due since {local(NOW - timedelta(minutes=1))} and waits for a free worker of stream jobs.",
    ),
    "suspect": ({"crash_count": 1}, "It runs alone, because a worker died or stalled while holding it."),
    "quarantined": ({"crash_count": 4}, "It is quarantined"),
    "future": ({"due_at": LATER}, f"It is not due before {local(LATER)}."),
    "deferred": (
        {"due_at": LATER, "error_code": "deferred", "error_message": "no handler for Job"},
        f"It is deferred until {local(LATER)}. Reason: no handler for Job.",
    ),
    "retrying": (
        {"due_at": LATER, "attempt": 2, "error_code": "error", "error_message": "boom"},
        f"It will be tried again at {local(LATER)}, after 2 attempts of 10; last error: error (boom).",
    ),
    "paused": (
        {"paused_since": EARLIER, "paused_reason": "too hot", "paused_by": "ann"},
        f"Stream jobs has been paused by ann since {local(EARLIER)}: too hot. Resume it: kingdom bus resume jobs",
    ),
    "paused comes first": (
        {"paused_since": EARLIER, "paused_reason": "x", "paused_by": "ann", "due_at": LATER},
        "has been paused by ann",
    ),
    "behind its key": (
        {"due_at": None, "partition_key": "k", "ahead_event_id": OTHER, "ahead_status": "PROCESSING"},
        f"Its key 'k' is busy: event {OTHER} (PROCESSING) comes first.",
    ),
    "blocked": (
        {"due_at": None, "partition_key": "k", "blocked_by_event_id": OTHER},
        f"Its key 'k' is blocked by the dead event {OTHER}. Redrive or discard that one: kingdom bus dead show {OTHER}",
    ),
    "next of its key": ({"due_at": None, "partition_key": "k"}, "It waits for its turn within key 'k'."),
    "running": (
        {"status": "PROCESSING", "worker": "w1", "lease_until": LATER, "attempt": 1},
        f"It is running: leased by w1 until {local(LATER)}, 1 attempt so far.",
    ),
    "running, to be cancelled": (
        {"status": "PROCESSING", "worker": "w1", "lease_until": LATER, "cancel_requested": True},
        "Its cancellation was requested; the worker sees that at its next renewal.",
    ),
    "lease expired": (
        {"status": "PROCESSING", "worker": "w1", "lease_until": EARLIER},
        f"It was leased by w1; the lease expired at {local(EARLIER)}, and a reaper returns it soon.",
    ),
    "lease gone": ({"status": "PROCESSING"}, "Its lease has just ended; a reaper is returning it to its stream."),
    "dead": (
        {"status": "DEAD", "processed_at": EARLIER, "attempt": 1, "error_code": "malformed", "error_message": "bad"},
        f"It has been dead since {local(EARLIER)}, after 1 attempt, because of malformed (bad). Redrive it: kingdom",
    ),
    "done": (
        {"status": "DONE", "processed_at": EARLIER, "attempt": 3},
        f"It has been done since {local(EARLIER)}, after 3 attempts.",
    ),
    "discarded": (
        {"status": "DISCARDED", "processed_at": EARLIER, "error_code": "error"},
        f"It was discarded at {local(EARLIER)}; its last error was error.",
    ),
    "dead for no recorded reason": ({"status": "DEAD"}, "dead since an unknown time, after 0 attempts, because of no"),
}


@pytest.mark.parametrize(("facts", "sentence"), CASES.values(), ids=CASES.keys())
def test_the_reason_is_a_sentence(facts: dict[str, Any], sentence: str) -> None:
    assert sentence in why(situation(**facts))


def test_every_case_is_distinguished() -> None:
    sentences = {why(situation(**facts)) for facts, _ in CASES.values()}
    assert len(sentences) == len(CASES)
