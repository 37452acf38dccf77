"""The reference page of JSON output. `python -m kingdom.cli.reference.shapes` prints the JSON schemas."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kingdom.cli.framework.json_result import JsonResult, json_result_of
from kingdom.cli.nouns import NOUNS
from kingdom.cli.reference.commands import commands_of
from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.views.json_schemas import output_schemas

_WORDS = """\
Every command has `--json`, except `top`, which is a screen, and `agent-mcp`, which serves an agent. The tests run every
command and compare its output with this page. [json-schemas.json](json-schemas.json) has the same for programs: a JSON
schema (draft 2020-12) for each command.

## What you can rely on

- Standard output has only the result. Notes, progress and errors are on standard error.
- Each document is on one line. *One document* and *one array* are one line, and with `--watch` one line whenever
  something changes. Commands that list what happened print *one document per line*, and with `--follow` they continue.
- A list without entries is an empty array, not an error.
- Times are in UTC in the format of RFC 3339. Money is in US dollars. Durations are in seconds.
- The exit code: 0 success, 1 failed or not found, 2 wrong usage or settings, 3 the store cannot be reached, 4 a run
  waits for a person. An error is one line on standard error that begins with `kingdom: `.

What may change within a major version:

- A document gets another field. Ignore unknown fields.
- A field with one of several values gets another value. Expect unknown values.
- The order of fields, the names of the shapes below, and texts for people, such as `reason` or `detail`.

What does not change within a major version:

- No field is removed, or gets another name, type or meaning.
- A field that is always present stays present. Fields that can be missing are marked.
- One document stays one document, an array stays an array, and lines stay lines.
"""
_DEFS = "#/$defs/"
_NO_ANCHOR = re.compile(r"[^\w-]")
_FORMATS = {"date-time": "time", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class Shapes:
    """The JSON result and schema of each command, by its words, and the shapes that the schemas refer to by name."""

    answers: dict[str, JsonResult]
    schemas: dict[str, dict[str, Any]]
    shapes: dict[str, dict[str, Any]]


def page() -> str:
    """Return the page of the documentation."""
    known = every_shape()
    rows = (
        (code(f"kingdom {name}"), answer.form, _describe(known.schemas[name], known.shapes))
        for name, answer in known.answers.items()
    )
    commands = table(("Command", "Prints", "Shape"), rows)
    sections = (line for name in sorted(known.shapes) for line in _section(name, known.shapes))
    return "\n".join([beginning("JSON", "json", _WORDS), "## Commands\n", *commands, "## Shapes\n", *sections])


def schemas() -> str:
    """Return the schemas of all commands as one document."""
    known = every_shape()
    commands = {name: {"prints": each.form, "schema": known.schemas[name]} for name, each in known.answers.items()}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What each command prints with --json",
        "commands": commands,
        "$defs": known.shapes,
    }
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2).decode() + "\n"


def every_shape() -> Shapes:
    """Return the JSON results of all commands with --json."""
    found = {name: json_result_of(command.callback) for noun in NOUNS for name, command in commands_of(noun)}
    answers = {name: answer for name, answer in sorted(found.items()) if answer}
    documents = [answer.document for answer in answers.values()]
    every, shapes = output_schemas(documents, _DEFS)
    return Shapes(answers, dict(zip(answers, every, strict=True)), shapes)


def _section(name: str, shapes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    shape = shapes[name]
    if "properties" not in shape:
        return
    yield f"### {name}\n"
    yield f"{' '.join(shape.get('description', '').split())}\n"
    yield from table(
        ("Field", "Type"),
        (
            (code(field), _describe(schema, shapes) + ("" if field in shape["required"] else "; can be missing"))
            for field, schema in shape["properties"].items()
        ),
    )


def _describe(schema: Mapping[str, Any], shapes: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe a value in words."""
    match schema:
        case {"$ref": _}:
            name = _name(schema)
            is_named = "properties" in shapes[name]
            return f"[{name}](#{_NO_ANCHOR.sub('', name.lower())})" if is_named else _describe(shapes[name], shapes)
        case {"anyOf": several}:
            return " or ".join(_describe(each, shapes) for each in several)
        case {"enum": values}:
            return ", ".join(code(str(value)) for value in values)
        case {"type": "array", "items": items}:
            return f"array of {_describe(items, shapes)}"
        case {"type": "object", "additionalProperties": values}:
            return f"object, each value {_describe(values, shapes)}"
        case {"type": kind}:
            return _FORMATS.get(schema.get("format", ""), str(kind))
    return "anything"


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix(_DEFS)


if __name__ == "__main__":
    sys.stdout.write(schemas())
