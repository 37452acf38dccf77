"""Parse the usage limits that vendors report, and detect agents that repeat themselves."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from kingdom.soldiers.agents.port import AgentFailed

# This many identical tool calls in a row are a loop.
LOOP_LENGTH = 8
_DETAIL_SHOWN = 200

# A usage limit lasts at least this long, so that an agent does not try again at once.
_SOONEST = timedelta(minutes=1)
# A reset time that is further away than this was misread, and is ignored.
_LATEST = timedelta(days=35)
# A time of day that passed less than this long ago means today, not tomorrow.
_JUST_PASSED = timedelta(minutes=10)
_LIMIT = re.compile(r"limit|quota|exhausted your capacity", re.IGNORECASE)
_MOMENT = re.compile(r"(?:reached\||\"resets_at\"\s*:\s*)(\d{10})(?:\d{3})?\b")
_SECONDS = re.compile(r"\"resets_in_seconds\"\s*:\s*(\d{1,9})\b")
_AMOUNT = r"\d{1,6}(?:\.\d+)?\s*(?:days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|ms|[dhms])(?![a-z])"
_SPAN = re.compile(rf"(?:again|retry|resets?)\s+(?:in|after)\s+((?:{_AMOUNT}[\s,]*(?:and\s+)?)+)", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[dhms])", re.IGNORECASE)
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME_OF_DAY = re.compile(
    r"(?:resets?|again)(?:\s+(?:at|on))?[:\s]+"
    rf"(?:(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<year>\d{{4}}))?"
    r"(?:,|\s+at)?\s+)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[ap]m)?\b"
    r"(?:\s*\((?P<zone>[A-Za-z0-9_+/-]+)\))?",
    re.IGNORECASE,
)
_NOON = 12


class AgentLoops(AgentFailed):
    """Raised when an agent repeats the same tool call although it was asked to stop."""

    code = "agent_loops"


class LoopAdvice(StrEnum):
    """What to do with an agent after a tool call."""

    CONTINUE = "continue"
    NUDGE = "nudge"
    GIVE_UP = "give up"


class LoopDetector:
    """Counts identical tool calls in a row; too many of them are a loop.

    The advice after the first loop is a nudge, which is a prompt that asks the agent to stop. The advice after the
    second loop is to give up.
    """

    def __init__(self, length: int = LOOP_LENGTH) -> None:
        self._length = length
        self._call = ("", "")
        self._count = 0
        self._nudged = False

    def record_call(self, tool: str, detail: str) -> LoopAdvice:
        """Count a tool call and return what to do; a call without a detail never counts as a repetition."""
        self._count = self._count + 1 if detail and self._call == (tool, detail) else 1
        self._call = (tool, detail)
        if self._count < self._length:
            return LoopAdvice.CONTINUE
        self._count = 0
        advice = LoopAdvice.GIVE_UP if self._nudged else LoopAdvice.NUDGE
        self._nudged = True
        return advice

    @property
    def description(self) -> str:
        """Describe the loop as the rest of a sentence that begins with `You` or `the agent`."""
        tool, detail = self._call
        shown = detail if len(detail) <= _DETAIL_SHOWN else f"{detail[:_DETAIL_SHOWN]}…"
        return f"called {tool} {self._length} times in a row with the same input: {shown}"

    @property
    def nudge(self) -> str:
        """Return the text of a nudge."""
        return (
            f"You {self.description}\n\nDo not call it again like this. Think about what you expected and what happened"
            " instead, then continue your task in another way; if you cannot, ask for help."
        )


def bounded_end(find_end: Callable[[], datetime | None], now: datetime) -> datetime | None:
    """Return the end of a usage limit, but not before a minute from now.

    Return None if `find_end` finds no end, fails because a time, date or zone does not exist, or finds an end that is
    too far away to be true.
    """
    try:
        end = find_end()
    except (ValueError, TypeError, KeyError, OSError, OverflowError):
        return None
    if end is None or end - now > _LATEST:
        return None
    return max(end, now + _SOONEST)


def parse_usage_limit(text: str, now: datetime) -> datetime | None:
    """Return when a vendor's usage limit ends according to an error message, or None if the message does not say so.

    A time of day without a zone is in the zone of `now`.
    """
    if not _LIMIT.search(text):
        return None
    return bounded_end(
        lambda: _parse_timestamp(text, now) or _parse_duration(text, now) or _parse_time_of_day(text, now), now
    )


def _parse_timestamp(text: str, now: datetime) -> datetime | None:
    found = _MOMENT.search(text)
    return datetime.fromtimestamp(int(found[1]), tz=now.tzinfo) if found else None


def _parse_duration(text: str, now: datetime) -> datetime | None:
    if found := _SECONDS.search(text):
        return now + timedelta(seconds=int(found[1]))
    found = _SPAN.search(text)
    if found is None:
        return None
    parts = (float(amount) * _UNITS[unit.lower()] for amount, unit in _PART.findall(found[1]))
    return now + sum(parts, timedelta())


def _parse_time_of_day(text: str, now: datetime) -> datetime | None:
    """Return the next moment that matches a time of day, with or without a date."""
    found = _TIME_OF_DAY.search(text)
    if found is None or not (found["half"] or found["minute"]):
        return None
    here = now.astimezone(ZoneInfo(found["zone"])) if found["zone"] else now
    hour = int(found["hour"])
    if found["half"]:
        hour = hour % _NOON + (_NOON if found["half"].lower() == "pm" else 0)
    at = here.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0)
    if not found["month"]:
        return at if at > here - _JUST_PASSED else at + timedelta(days=1)
    month = _MONTHS.index(found["month"].lower()) + 1
    at = at.replace(month=month, day=int(found["day"]), year=int(found["year"] or at.year))
    is_next_year = not found["year"] and at < here - timedelta(days=1)
    return at.replace(year=at.year + 1) if is_next_year else at
