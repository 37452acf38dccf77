"""The part of JQL that the Sentinel and the tests send: conditions joined by AND, and one ORDER BY field."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kingdom.standins.jira.tickets import format_time

_ORDER_BY = re.compile(
    r"(?P<where>.*?)\bORDER\s+BY\s+(?P<field>\w+)(?:\s+(?P<direction>ASC|DESC))?\s*", re.IGNORECASE | re.DOTALL
)
_EQUALS = re.compile(
    r"""(assignee|key|project|status)\s*=\s*(?:"([^"]+)"|'([^']+)'|(currentUser\(\)|[\w:-]+))""", re.IGNORECASE
)
_UPDATED_SINCE = re.compile(r"(?i)updated\s*>=\s*-(\d+)([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_ORDER_FIELDS = ("created", "updated", "key")
_UNBOUNDED = "Unbounded JQL queries are not allowed here. Please add a search restriction to your query."
_SUPPORTED = (
    "The stand-in supports: assignee, key, project or status = VALUE; updated >= -5m; AND; ORDER BY created, updated or"
    " key."
)


class JqlError(Exception):
    """Raised for a query that Jira or this stand-in refuses."""


class JqlOrder(NamedTuple):
    """The field that a query sorts by."""

    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class JqlCondition:
    """One field and its required value. For the field `updated`, the value is the earliest time."""

    field: str
    value: str

    def matches(self, ticket: dict[str, Any]) -> bool:
        """Return whether a ticket meets the condition."""
        if self.field == "updated":
            return bool(ticket["updated"] >= self.value)
        return str(ticket[self.field] or "").lower() == self.value.lower()


@dataclass(frozen=True, slots=True)
class JqlQuery:
    """Conditions that must all be met, and the order of the result."""

    conditions: tuple[JqlCondition, ...]
    order: JqlOrder


def parse_jql(jql: str, *, me: str, now: datetime) -> JqlQuery:
    """Parse a query. `me` is the account of currentUser(), and relative times count from `now`."""
    where, order = jql, JqlOrder("created", descending=True)
    if found := _ORDER_BY.fullmatch(jql):
        where, field = found["where"], found["field"].lower()
        if field not in _ORDER_FIELDS:
            raise _unsupported(f"ORDER BY {field}")
        order = JqlOrder(field, descending=(found["direction"] or "").upper() == "DESC")
    if not where.strip():
        raise JqlError(_UNBOUNDED)
    if where.count("(") != where.count(")"):
        raise _unsupported(where.strip())
    parts = re.split(r"\bAND\b", where, flags=re.IGNORECASE)
    return JqlQuery(tuple(_parse_condition(part, me, now) for part in parts), order)


def _parse_condition(text: str, me: str, now: datetime) -> JqlCondition:
    text = _without_grouping(text)
    if since := _UPDATED_SINCE.fullmatch(text):
        span = timedelta(**{_UNITS[since[2].lower()]: int(since[1])})
        return JqlCondition("updated", format_time(now - span))
    found = _EQUALS.fullmatch(text)
    if found is None:
        raise _unsupported(text)
    value = found[2] or found[3] or found[4]
    return JqlCondition(found[1].lower(), me if value.lower() == "currentuser()" else value)


def _without_grouping(text: str) -> str:
    """Remove grouping parentheses, which change nothing between conditions joined by AND."""
    text = text.strip().lstrip("( ")
    while text.count(")") > text.count("(") and text.endswith(")"):
        text = text[:-1].rstrip()
    return text


def _unsupported(text: str) -> JqlError:
    return JqlError(f"This stand-in for Jira does not support the JQL '{text}'. {_SUPPORTED}")
