"""The reference page of JSON output. `python -m kingdom.cli.reference.shapes` prints the JSON schemas."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import Any, get_args, get_type_hints

import msgspec

from kingdom.cli.framework.json_result import JsonResult, json_result_of
from kingdom.cli.nouns import NOUNS
from kingdom.cli.reference.commands import commands_of
from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.views.log_lines import LogLine

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
    kinds = _kinds(documents)
    every, shapes = msgspec.json.schema_components([*documents, *kinds], ref_template=f"{_DEFS}{{name}}")
    for kind, schema in zip(kinds, every[len(documents) :], strict=True):
        _describe_output(kind, shapes[_name(schema)])
    return Shapes(answers, dict(zip(answers, every, strict=False)), shapes)


def _kinds(documents: Sequence[Any]) -> list[type[Any]]:
    """Return every class that has fields and occurs in these types."""
    kinds: dict[type[Any], None] = {}
    remaining: list[Any] = list(msgspec.inspect.multi_type_info(documents))
    while remaining:
        each = remaining.pop()
        if isinstance(each, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if each.cls in kinds:
                continue
            kinds[each.cls] = None
        if isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field):
            remaining += [getattr(each, name) for name in each.__struct_fields__]
        elif isinstance(each, tuple):
            remaining += each
    return list(kinds)


def _describe_output(kind: type[Any], shape: dict[str, Any]) -> None:
    """Make a schema describe output instead of input: mark the fields that are always present, and allow others."""
    hints = get_type_hints(kind)
    names = {name: name for name in hints}
    always = set(names)
    if not is_dataclass(kind):
        fields = msgspec.structs.fields(kind)
        names = {each.name: each.encode_name for each in fields}
        omits = kind.__struct_config__.omit_defaults
        always = {each.name for each in fields if (each.required if omits else each.default is not msgspec.UNSET)}
    shape["required"] = [names[name] for name in names if name in always]
    shape.pop("additionalProperties", None)
    if kind is LogLine:
        shape["additionalProperties"] = True
    for name, printed in names.items():
        schema = shape["properties"][printed]
        schema.pop("default", None)
        if datetime in (hints[name], *get_args(hints[name])):
            next(each for each in schema.get("anyOf", [schema]) if each.get("type") == "string")["format"] = "date-time"


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
