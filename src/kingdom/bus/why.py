"""Explain why an event is not running."""

from datetime import datetime

from kingdom.bus.delivery import LOST_ALONE_LIMIT
from kingdom.bus.operations import Situation


def why(situation: Situation) -> str:
    """Return why an event is not running, and what a person can do about it."""
    s = situation
    match s.status:
        case "DONE":
            return f"It has been done since {_time(s.processed_at)}, after {_attempts(s.attempt)}."
        case "DISCARDED":
            return f"It was discarded at {_time(s.processed_at)}; its last error was {_error(s)}."
        case "DEAD":
            return (
                f"It has been dead since {_time(s.processed_at)}, after {_attempts(s.attempt)}, because of {_error(s)}."
                f" Redrive it: kingdom bus redrive {s.event_id}"
            )
        case "PROCESSING":
            return _explain_running(s)
        case "PENDING":
            return _explain_waiting(s)
        case "UNSENT":
            return _explain_unsent(s)
        case "SENT":
            return (
                f"The courier has sent it to the transport of stream {s.stream}. A worker of the stream has handled it,"
                " or will handle it after the events before it."
            )


def _explain_unsent(s: Situation) -> str:
    since = f"It was published at {_time(s.processed_at)}"
    if s.worker is None or s.lease_until is None or s.lease_until < s.now:
        return f"{since} and is not sent yet, because no courier runs. Start one: kingdom role courier"
    return f"{since} and is not sent yet; the courier {s.worker} sends it soon."


def _explain_running(s: Situation) -> str:
    if s.worker is None or s.lease_until is None:
        return "Its lease has just ended; a reaper is returning it to its stream."
    if s.lease_until < s.now:
        return (
            f"It was leased by {s.worker}; the lease expired at {_time(s.lease_until)}, and a reaper returns it soon."
        )
    asked = " Its cancellation was requested; the worker sees that at its next renewal." if s.cancel_requested else ""
    return f"It is running: leased by {s.worker} until {_time(s.lease_until)}, {_attempts(s.attempt)} so far.{asked}"


def _explain_waiting(s: Situation) -> str:
    if s.paused_since is not None:
        return (
            f"Stream {s.stream} has been paused by {s.paused_by} since {_time(s.paused_since)}: {s.paused_reason}."
            f" Resume it: kingdom bus resume {s.stream}"
        )
    if s.due_at is None:
        return _explain_turn(s)
    if s.due_at > s.now:
        return _explain_due_later(s)
    if s.crash_count > LOST_ALONE_LIMIT:
        return "It is quarantined, because its worker died or stalled too often: the next claim ends it as dead."
    suspect = " It runs alone, because a worker died or stalled while holding it." if s.crash_count else ""
    return f"It has been due since {_time(s.due_at)} and waits for a free worker of stream {s.stream}.{suspect}"


def _explain_turn(s: Situation) -> str:
    """Explain why an event waits for another event of its key."""
    if s.blocked_by_event_id is not None:
        return (
            f"Its key {s.partition_key!r} is blocked by the dead event {s.blocked_by_event_id}."
            f" Redrive or discard that one: kingdom bus dead show {s.blocked_by_event_id}"
        )
    if s.ahead_event_id is not None:
        return f"Its key {s.partition_key!r} is busy: event {s.ahead_event_id} ({s.ahead_status}) comes first."
    return f"It waits for its turn within key {s.partition_key!r}."


def _explain_due_later(s: Situation) -> str:
    when = _time(s.due_at)
    if s.error_code == "deferred":
        return f"It is deferred until {when}. Reason: {s.error_message}."
    if s.error_code:
        tried = f"{_attempts(s.attempt)} of {s.max_attempts}"
        return f"It will be tried again at {when}, after {tried}; last error: {_error(s)}."
    return f"It is not due before {when}."


def _error(s: Situation) -> str:
    return f"{s.error_code or 'no recorded error'}{f' ({s.error_message})' if s.error_message else ''}"


def _attempts(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _time(moment: datetime | None) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="seconds") if moment else "an unknown time"
