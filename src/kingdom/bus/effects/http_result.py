"""Classify HTTP responses as results of effects."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from kingdom.bus.effects.effect import Acked, CallResult, Rejected, Throttled, Unknown
from kingdom.clock import utc_now

# Statuses that differ from their class; 2xx is Acked, 3xx and 4xx Rejected, 5xx Unknown.
_SPECIAL: Mapping[int, type[Throttled] | type[Unknown]] = {
    408: Unknown,  # the server stopped waiting, but may have read enough
    409: Unknown,  # often our own earlier call, still running or done
    418: Throttled,  # used by exchanges for a block after repeated 429
    425: Throttled,  # too early: not processed
    429: Throttled,
}
# A longer Retry-After is a mistake.
_LONGEST_WAIT = timedelta(days=30)
_NO_BODY: Mapping[str, Any] = {}


def classify_response(status: int, headers: Mapping[str, str], body: Mapping[str, Any] = _NO_BODY) -> CallResult:
    """Return the result that a response means. A network error has no response and is Unknown."""
    reason = f"HTTP {status}"
    special = _SPECIAL.get(status)
    if special is Throttled:
        return Throttled(retry_after(headers), reason)
    if special is Unknown or status >= 500 or status < 200:  # noqa: PLR2004 - the classes of HTTP itself
        return Unknown(reason)
    if status < 300:  # noqa: PLR2004 - the classes of HTTP itself
        return Acked(body)
    return Rejected(reason)


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """Return the wait that a Retry-After header asks for, in seconds or until a date."""
    value = next((text for name, text in headers.items() if name.lower() == "retry-after"), "").strip()
    try:
        wait = timedelta(seconds=int(value)) if value.isdecimal() else _until(value)
    except ValueError:
        return None
    except OverflowError:
        return _LONGEST_WAIT
    return min(max(wait, timedelta()), _LONGEST_WAIT)


def _until(date: str) -> timedelta:
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - utc_now()
