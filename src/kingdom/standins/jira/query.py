"""The part of JQL that the stand-in understands, with Jira's answers to what is wrong."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kingdom.standins.jira.tickets import CATEGORIES, STATUSES, printed

DATES = frozenset({"created", "updated"})
SORTABLE = frozenset({"created", "updated", "key"})
FIELDS = {
    "project": "project",
    "assignee": "assignee",
    "reporter": "reporter",
    "status": "status",
    "statuscategory": "statuscategory",
    "labels": "labels",
    "key": "key",
    "issue": "key",
    "issuekey": "key",
    "issuetype": "issuetype",
    "type": "issuetype",
    "created": "created",
    "createddate": "created",
    "updated": "updated",
    "updateddate": "updated",
}
RESERVED = frozenset({"and", "or", "not", "in", "is", "order", "by", "was", "changed", "select", "from", "where"})
EMPTY = frozenset({"empty", "null"})
OPPOSITE = {"in": "not in", "not in": "in", "=": "!=", "!=": "=", ">": "<=", "<=": ">", "<": ">=", ">=": "<"}
COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
DATE_FORMATS = ("%Y/%m/%d %H:%M", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%Y-%m-%d")
UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}
A_VALUE = "either a value, list or function"
TOKEN = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<symbol>!=|>=|<=|[()=<>,!])|(?P<word>[\w:-]+)"""
)


class BadQuery(Exception):
    """A query that Jira refuses, in its words."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field and what it is compared with; in a list, None stands for no value at all."""

    field: str
    operator: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Every:
    """Conditions that all must hold."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Conditions of which one must hold."""

    parts: tuple["Condition", ...]


Condition = Comparison | Every | Some


class Sort(NamedTuple):
    """One field to sort by."""

    field: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched, and in which order."""

    where: Condition | None
    order: tuple[Sort, ...]


class _Token(NamedTuple):
    text: str
    kind: str
    at: int

    def says(self, *texts: str) -> bool:
        return self.kind != "quoted" and self.text.lower() in texts


def parse(jql: str, *, me: str, now: datetime) -> Query:
    """Read a query; who asks and when settle what currentUser() and relative dates mean."""
    return _Reader(list(_tokens(jql)), me, now).query()


def holds(condition: Condition, ticket: dict[str, Any]) -> bool:
    """Tell whether a ticket meets a condition; as in Jira, a field without value is not unequal to anything."""
    if isinstance(condition, Every):
        return all(holds(part, ticket) for part in condition.parts)
    if isinstance(condition, Some):
        return any(holds(part, ticket) for part in condition.parts)
    if condition.field in DATES:
        return COMPARISONS[condition.operator](ticket[condition.field], condition.values[0] or "")
    actual = _values(ticket, condition.field)
    wanted = {value.lower() for value in condition.values if value is not None}
    if condition.operator == "in":
        return bool(actual & wanted) or (None in condition.values and not actual)
    return bool(actual) and not actual & wanted


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """Yield every comparison of a condition."""
    if isinstance(condition, Comparison):
        yield condition
    else:
        for part in condition.parts:
            yield from comparisons(part)


def _values(ticket: dict[str, Any], field: str) -> set[str]:
    if field == "statuscategory":
        category = STATUSES[ticket["status"]]["category"]
        return {category, CATEGORIES[category]["name"].lower()}
    value = ticket[field]
    present = value if isinstance(value, list) else [value] if value else []
    return {each.lower() for each in present}


def _negated(condition: Condition) -> Condition:
    if isinstance(condition, Comparison):
        return Comparison(condition.field, OPPOSITE[condition.operator], condition.values)
    parts = tuple(_negated(part) for part in condition.parts)
    return Some(parts) if isinstance(condition, Every) else Every(parts)


def _tokens(jql: str) -> Iterator[_Token]:
    at = 0
    while at < len(jql):
        if jql[at].isspace():
            at += 1
            continue
        found = TOKEN.match(jql, at)
        if found is None and jql[at] in "\"'":
            raise _error(f"The quoted string '{jql[at + 1 :]}' has not been completed", at)
        if found is None:
            must = "You must enclose it in a string to use it in a query"
            raise _error(f"The character '{jql[at]}' is a reserved JQL character. {must}", at)
        kind = found.lastgroup or ""
        text = re.sub(r"\\(.)", r"\1", found[0][1:-1]) if kind == "quoted" else found[0]
        yield _Token(text, kind, at)
        at = found.end()


def _error(what: str, at: int) -> BadQuery:
    return BadQuery(f"Error in JQL Query: {what}. (line 1, character {at + 1})")


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[_Token], me: str, now: datetime) -> None:
        self._tokens = tokens
        self._me = me
        self._now = now

    def query(self) -> Query:
        where = None if not self._tokens or self._next_says("order") else self._either()
        order = self._order() if self._take("order") else ()
        if self._tokens:
            raise self._unexpected("either 'OR' or 'AND'")
        return Query(where, order)

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _both(self) -> Condition:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _one(self) -> Condition:
        if self._take("not", "!"):
            return _negated(self._one())
        if self._take("("):
            inner = self._either()
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Comparison:
        field = self._field()
        found = self._operator()
        if field in DATES:
            if found not in COMPARISONS:
                raise _unsupported(found, field)
            return Comparison(field, found, (self._date(field),))
        if found in ("in", "not in"):
            return Comparison(field, found, self._list())
        if found in ("is", "is not"):
            if not self._next_says(*EMPTY):
                raise self._unexpected("'EMPTY' or 'NULL'")
            return Comparison(field, "in" if found == "is" else "not in", (self._value(),))
        if found not in ("=", "!="):
            raise _unsupported(found, field)
        return Comparison(field, "in" if found == "=" else "not in", (self._value(),))

    def _field(self) -> str:
        token = self._word("a field name")
        known = FIELDS.get(token.text.lower())
        if known is None:
            raise BadQuery(f"Field '{token.text}' does not exist or you do not have permission to view it.")
        return known

    def _operator(self) -> str:
        for name, second in (("in", ""), ("is", "not"), ("not", "in")):
            if self._take(name):
                if second and self._take(second):
                    return f"{name} {second}"
                if name != "not":
                    return name
        if not self._next_says(*COMPARISONS):
            raise self._unexpected("an operator")
        return self._tokens.pop(0).text

    def _list(self) -> tuple[str | None, ...]:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _value(self) -> str | None:
        if self._take(*EMPTY):
            return None
        token = self._word(A_VALUE)
        if token.kind == "word" and self._take("("):
            self._expect(")")
            if token.text.lower() != "currentuser":
                raise BadQuery(f"Unable to find JQL function '{token.text}()'.")
            return self._me
        return token.text

    def _date(self, field: str) -> str:
        token = self._word(A_VALUE)
        if token.says("now") and self._take("("):
            self._expect(")")
            return printed(self._now)
        if period := re.fullmatch(r"([+-]?)(\d+[wdhm](?: \d+[wdhm])*)", token.text):
            parts = [timedelta(**{UNITS[part[-1]]: int(part[:-1])}) for part in period[2].split()]
            span = sum(parts, timedelta())
            return printed(self._now - span if period[1] == "-" else self._now + span)
        for layout in DATE_FORMATS:
            try:
                return printed(datetime.strptime(token.text, layout).replace(tzinfo=UTC))
            except ValueError:
                continue
        raise BadQuery(
            f"Date value '{token.text}' for field '{field}' is invalid. Valid formats include: 'yyyy/MM/dd HH:mm', "
            "'yyyy-MM-dd HH:mm', 'yyyy/MM/dd', 'yyyy-MM-dd', or a period format e.g. '-5d', '4w 2d'."
        )

    def _order(self) -> tuple[Sort, ...]:
        self._expect("by")
        order = []
        while True:
            field = self._field()
            if field not in SORTABLE:
                raise BadQuery(f"Not able to sort using field '{field}'.")
            descending = self._take("desc")
            if not descending:
                self._take("asc")
            order.append(Sort(field, descending))
            if not self._take(","):
                return tuple(order)

    def _word(self, what: str) -> _Token:
        if not self._tokens or self._tokens[0].kind == "symbol":
            raise self._unexpected(what)
        token = self._tokens.pop(0)
        if token.says(*RESERVED):
            must = "You must surround it in quotation marks to use it in a query"
            raise _error(f"'{token.text}' is a reserved JQL word. {must}", token.at)
        return token

    def _next_says(self, *texts: str) -> bool:
        return bool(self._tokens) and self._tokens[0].says(*texts)

    def _take(self, *texts: str) -> bool:
        found = self._next_says(*texts)
        if found:
            self._tokens.pop(0)
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(f"'{text}'")

    def _unexpected(self, wanted: str) -> BadQuery:
        if not self._tokens:
            return BadQuery(f"Error in JQL Query: Expecting {wanted} before the end of the query.")
        return _error(f"Expecting {wanted} but got '{self._tokens[0].text}'", self._tokens[0].at)


def _unsupported(found: str, field: str) -> BadQuery:
    return BadQuery(f"The operator '{found}' is not supported by the '{field}' field.")
