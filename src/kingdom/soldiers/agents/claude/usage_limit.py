"""Find the end of a usage limit in error messages of Anthropic."""

import re
from datetime import UTC, datetime

from kingdom.soldiers.agents.limits import bounded_end, parse_usage_limit

# The message of the API when the monthly budget is spent; other messages come from Claude Code.
_REGAIN = re.compile(r"regain access on (\d{4}-\d{2}-\d{2}) at (\d{2}:\d{2}) UTC")


def limited_until(text: str, now: datetime) -> datetime | None:
    """Return when the usage limit ends according to an error message, or None if the message does not say so."""
    if found := _REGAIN.search(text):
        return bounded_end(lambda: datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC), now)
    return parse_usage_limit(text, now)


def reset_at(timestamp: float, now: datetime) -> datetime | None:
    """Return when a usage limit ends according to Claude Code, or None if the timestamp cannot be true."""
    return bounded_end(lambda: datetime.fromtimestamp(timestamp, UTC), now)
