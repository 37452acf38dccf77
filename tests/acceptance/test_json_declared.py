"""The declared JSON output of commands: wrong output is refused, and the help shows the same declaration."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import ValidationError  # type: ignore[import-untyped]

from kingdom.cli.reference.shapes import every_shape, schemas
from tests.acceptance.json_commands import COMMANDS, ShapeChecker

KNOWN = every_shape()
FILE = Path(__file__).parents[2] / "docs" / "reference" / "json-schemas.json"
_PART = re.compile(r"[{}\[\],]|[^{}\[\],]+")
_FIELD = re.compile(r"\s*(\w+)")


def test_a_document_that_differs_from_its_declaration_is_refused() -> None:
    shaped = ShapeChecker(KNOWN)
    example = {"stream": "orders", "reason": "a look", "actor": "anna"}
    assert shaped.check("bus pause", json.dumps(example)) == example
    wrong = (
        {**example, "more": 1},
        {"stream": "orders", "reason": "a look"},
        {**example, "actor": 7},
        [example],
    )
    for document in wrong:
        with pytest.raises(ValidationError):
            shaped.check("bus pause", json.dumps(document))
    with pytest.raises(msgspec.ValidationError):
        shaped.check("role", '{"at": "today", "level": "info", "event": "no moment"}')


def test_the_schemas_of_the_reference_are_the_declared_ones() -> None:
    hint = "run: .venv/bin/python -m kingdom.cli.reference.shapes > docs/reference/json-schemas.json"
    assert FILE.read_text(encoding="utf-8") == schemas(), hint


def test_the_help_names_exactly_the_existing_fields() -> None:
    assert not has(KNOWN.schemas["bus pause"], ("nobody",))
    assert {name: wrong for name in KNOWN.answers if (wrong := wrong_fields(name))} == {}


def wrong_fields(name: str) -> set[str]:
    """Return the fields that only the help of a command names, and the declared fields that the help lacks."""
    (words,) = (each for each in COMMANDS[name].help.replace("\\[", "[").split("\n\n") if each.startswith("JSON: "))
    paths = list(named(words))
    wrong = {".".join(path) for path in paths if not has(KNOWN.schemas[name], path)}
    # Three dots, or the name of another command, refer to the remaining fields.
    if paths and "…" not in words:
        wrong |= set(resolved(KNOWN.schemas[name])["required"]) - {path[0] for path in paths}
    return wrong


def named(words: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field in braces, as in {answers: [{text}]}."""
    stack: list[str | None] = []
    is_next = False
    for part in _PART.findall(words):
        if part in "{[":
            stack.append("" if part == "{" else None)
        elif part in "}]":
            stack.pop()
        elif is_next and (found := _FIELD.match(part)):
            stack[-1] = found[1]
            yield tuple(name for name in stack if name)
        is_next = part in "{," and bool(stack) and stack[-1] is not None


def has(schema: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether a document of this schema can have a field. An object without declared fields may have any."""
    fields = resolved(schema).get("properties")
    if not path or fields is None:
        return True
    return path[0] in fields and has(fields[path[0]], path[1:])


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object schema: follow references, arrays, and the non-null part of a union."""
    match schema:
        case {"$ref": name}:
            return resolved(KNOWN.shapes[name.rpartition("/")[2]])
        case {"type": "array", "items": items}:
            return resolved(items)
        case {"anyOf": [*several]}:
            return resolved(next(each for each in several if each != {"type": "null"}))
    return schema
