"""Until when Anthropic lets an agent do nothing."""

import re
from datetime import UTC, datetime

from kingdom.soldiers.agents.limits import parse_usage_limit

# What the API says once a month's money is spent; the program of the vendor says the rest in its own words.
_REGAIN = re.compile(r"regain access on (\d{4}-\d{2}-\d{2}) at (\d{2}:\d{2}) UTC")


def limited_until(text: str, now: datetime) -> datetime | None:
    """Return the time that an error message tells, or None if it tells of no limit."""
    if found := _REGAIN.search(text):
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    return parse_usage_limit(text, now)
