"""Parse a GraphQL document with one operation, and select the requested fields of a result."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\.\.\.|[{}()\[\]:!$=]|-?\d+|[_A-Za-z]\w*')
_IGNORED = re.compile(r"#[^\n]*|,")
_CONSTANTS = {"true": True, "false": False, "null": None}


class GraphqlError(Exception):
    """Raised when an operation or a part of it fails. `kind` is the type of the error in the answer."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RequestedField:
    """A field that a document requests. `on` is the type of an inline fragment, which has no name."""

    name: str
    key: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple["RequestedField", ...] = ()
    on: str = ""


def parse_document(text: str, variables: Mapping[str, Any]) -> tuple[str, tuple[RequestedField, ...]]:
    """Return the kind of the operation, query or mutation, and the fields that it requests."""
    reader = _Reader(_TOKEN.findall(_IGNORED.sub(" ", text)), variables)
    kind = "query"
    while reader.next != "{":
        word = reader.take()
        kind = word if word in ("query", "mutation") else kind
        if word == "(":
            reader.skip_definitions()
    return kind, reader.selection()


def select(value: Any, fields: tuple[RequestedField, ...]) -> Any:
    """Return the requested fields of a value. A value that is a function gets the arguments of its field."""
    if isinstance(value, list):
        return [select(each, fields) for each in value]
    if value is None or not fields:
        return value
    selected: dict[str, Any] = {}
    for each in fields:
        if each.on:
            selected |= select(value, each.fields) if each.on == value["__typename"] else {}
            continue
        if each.name not in value:
            kind = value.get("__typename", "Query")
            raise GraphqlError("undefinedField", f"Field '{each.name}' doesn't exist on type '{kind}'")
        found: Any = value[each.name]
        resolve: Callable[..., Any] | None = found if callable(found) else None
        selected[each.key] = select(resolve(**each.arguments) if resolve else found, each.fields)
    return selected


class _Reader:
    """Reads the tokens of a document."""

    def __init__(self, tokens: list[str], variables: Mapping[str, Any]) -> None:
        self._tokens = tokens
        self._variables = variables
        self._position = 0

    @property
    def next(self) -> str:
        if self._position >= len(self._tokens):
            raise GraphqlError("parseError", "Expected one or more definitions, but the document ends")
        return self._tokens[self._position]

    def take(self, expected: str | None = None) -> str:
        token = self.next
        if expected not in (None, token):
            raise GraphqlError("parseError", f"Expected {expected}, but found {token}")
        self._position += 1
        return token

    def skip_definitions(self) -> None:
        """Skip the definitions of variables after their opening parenthesis."""
        while self.take() != ")":
            pass

    def selection(self) -> tuple[RequestedField, ...]:
        self.take("{")
        found = []
        while self.next != "}":
            found.append(self._fragment() if self.next == "..." else self._field())
        self.take("}")
        return tuple(found)

    def _fragment(self) -> RequestedField:
        self.take("...")
        self.take("on")
        return RequestedField(name="", key="", on=self.take(), fields=self.selection())

    def _field(self) -> RequestedField:
        key = name = self.take()
        if self.next == ":":
            self.take()
            name = self.take()
        arguments = self._pairs("(", ")") if self.next == "(" else {}
        return RequestedField(name, key, arguments, self.selection() if self.next == "{" else ())

    def _pairs(self, opening: str, closing: str) -> dict[str, Any]:
        self.take(opening)
        pairs = {}
        while self.next != closing:
            name = self.take()
            self.take(":")
            pairs[name] = self._value()
        self.take(closing)
        return pairs

    def _value(self) -> Any:
        if self.next == "{":
            return self._pairs("{", "}")
        word = self.take()
        if word == "$":
            return self._variables.get(self.take())
        if word == "[":
            found = []
            while self.next != "]":
                found.append(self._value())
            self.take("]")
            return found
        if word.startswith('"') or word.lstrip("-").isdecimal():
            return json.loads(word)
        return _CONSTANTS.get(word, word)
