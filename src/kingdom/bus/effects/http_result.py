"""Classify HTTP responses as results of effects."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from kingdom.bus.effects.effect import Acked, CallResult, Rejected, Throttled, Unknown
from kingdom.clock import utc_now

# Exceptions to the rule that 2xx is Acked, 3xx and 4xx are Rejected, and 5xx is Unknown.
_SPECIAL: Mapping[int, type[Throttled] | type[Unknown]] = {
    408: Unknown,  # the server stopped waiting for the request, but may have executed it
    409: Unknown,  # often a conflict with an earlier attempt of the same call
    418: Throttled,  # some APIs block a client with this status after repeated 429
    425: Throttled,  # Too Early: the server did not process the request
    429: Throttled,
}
# A longer Retry-After is taken for a mistake and shortened to this.
_LONGEST_WAIT = timedelta(days=30)
_NO_BODY: Mapping[str, Any] = {}


def classify_response(status: int, headers: Mapping[str, str], body: Mapping[str, Any] = _NO_BODY) -> CallResult:
    """Return the result of a call from its response. A call without a response is Unknown."""
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
    """Return the wait from a Retry-After header, which contains seconds or a date."""
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
