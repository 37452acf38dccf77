"""Deliveries for tests."""

from typing import Any

from kingdom.bus import Delivery, Envelope
from kingdom.clock import utc_now


def delivery(**fields: Any) -> Delivery:
    known: dict[str, Any] = {
        "stream": "jobs",
        "position": 1,
        "token": 1,
        "envelope": Envelope(type="Job"),
        "attempt": 1,
        "max_attempts": 10,
        "crash_count": 0,
        "ordered": False,
        "published_at": utc_now(),
    }
    return Delivery(**(known | fields))


def run_of(key: str, *positions: int, **fields: Any) -> list[Delivery]:
    """Return the deliveries of one run of a key."""
    envelope = Envelope(type="Job", partition_key=key)
    return [delivery(position=p, same_key=positions, ordered=True, envelope=envelope, **fields) for p in positions]
