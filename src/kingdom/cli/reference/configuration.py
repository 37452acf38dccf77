"""The reference page of settings, from the JSON schemas of the files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.cli.schemas.general import general_schema
from kingdom.cli.schemas.settings import settings_schema
from kingdom.cli.schemas.template import template_schema

_WORDS = """\
People write three kinds of files: the settings of a realm, a General, and a template. Each has a JSON schema for
editors. An unknown field is an error that names the line and the known fields.
"""
_DEFINITIONS = "#/$defs/"
_PLAIN = {"string": "text", "boolean": "`true` or `false`"}
_NOTHING = frozenset({"null", '""', "[]"})
# The text of a limit by its keyword in the schema.
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A kind of file, its schema, and the file in `docs` where the schema is published."""

    title: str
    published: str
    introduction: str
    schema: dict[str, Any]


def page() -> str:
    """Return the page of the documentation."""
    files = (
        _File(
            title="kingdom.yaml",
            published="kingdom.schema.json",
            introduction=(
                "The settings of a realm. Everything has a default; `kingdom config check` prints the effective"
                " settings. Write a secret as `env:NAME` or `file:PATH`. Paths are relative to the file."
                " See [Running it](../running.md)."
            ),
            schema=settings_schema(),
        ),
        _File(
            title="general.yaml",
            published="general.schema.json",
            introduction=(
                "The events that a General handles, and what it may do. `kingdom general validate` checks it."
                " See [Generals](../generals.md)."
            ),
            schema=general_schema(),
        ),
        _File(
            title="A template, and workflow.yaml",
            published="template.schema.json",
            introduction=(
                "The definition of a run. `kingdom template validate FILE` checks it. See [Workflows](../workflows.md)."
            ),
            schema=template_schema(),
        ),
    )
    return "\n".join(
        [beginning("Configuration", "configuration", _WORDS), *(line for file in files for line in _file(file))]
    )


def _file(file: _File) -> Iterator[str]:
    yield f"## {file.title}\n\n{file.introduction} The schema is [here](../{file.published}).\n"
    places = dict(_places(file.schema["$defs"], file.schema["$ref"].removeprefix(_DEFINITIONS), ""))
    for name, place in places.items():
        yield from _section(file.schema["$defs"], name, place)


def _places(kinds: Mapping[str, Any], name: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each type that has fields, and the path of a field with this type."""
    yield name, path
    for field, value in kinds[name]["properties"].items():
        for inner in _references(value):
            if "properties" in kinds[inner]:
                many = "[]" if value.get("type") == "array" else ""
                yield from _places(kinds, inner, f"{path}.{field}{many}".lstrip("."))


def _references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str() as name}:
            yield name.removeprefix(_DEFINITIONS)
        case {"anyOf": list() as choices}:
            for each in choices:
                yield from _references(each)
        case {"items": each}:
            yield from _references(each)


def _section(kinds: Mapping[str, Any], name: str, place: str) -> Iterator[str]:
    kind = kinds[name]
    if place:
        yield f"### {place}\n"
    yield f"{' '.join(kind['description'].split())}\n"
    rows = (
        (code(field), _type(kinds, value), _default(kind, field, value), value["description"])
        for field, value in kind["properties"].items()
    )
    yield from table(("Setting", "Type", "Default", "Meaning"), rows)


def _type(kinds: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    match value:
        case {"$ref": str() as name}:
            kind = kinds[name.removeprefix(_DEFINITIONS)]
            return " or ".join(map(code, kind["enum"])) if "enum" in kind else "see below"
        case {"enum": list() as choices}:
            return " or ".join(map(code, choices))
        case {"anyOf": list() as choices}:
            return " or ".join(_type(kinds, each) for each in choices if each != {"type": "null"})
        case {"type": "array", "items": items}:
            return f"list of {_type(kinds, items)}{_limits(value)}"
        case {"type": "object"}:
            return "mapping"
    return f"{_PLAIN.get(value['type'], value['type'])}{_limits(value)}"


def _limits(value: Mapping[str, Any]) -> str:
    return "".join(f", {form.format(value[word])}" for word, form in _LIMITS.items() if word in value)


def _default(kind: Mapping[str, Any], field: str, value: Mapping[str, Any]) -> str:
    if field in kind["required"]:
        return "required"
    written = msgspec.json.encode(value["default"]).decode()
    if written in _NOTHING or written.startswith("{"):
        return ""
    return code(value["default"] if isinstance(value["default"], str) else written)
