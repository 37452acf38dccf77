"""A schema in which every field has its meaning, which editors show where somebody writes it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from kingdom.cli.shared.output import CommandOutput

# What the fields of each type mean, by its name in the schema.
Words = Mapping[str, Mapping[str, str]]


def schema_of(kind: type, words: Words) -> dict[str, Any]:
    """Return the schema of a file; a field without words, or words without a field, are a mistake of ours."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    fields = {name: each["properties"] for name, each in schema["$defs"].items() if "properties" in each}
    for name in fields.keys() | words.keys():
        if differing := fields.get(name, {}).keys() ^ words.get(name, {}).keys():
            raise LookupError(
                f"the words for {name} do not fit its fields: add or remove those for {sorted(differing)}"
            )
        for field, meaning in words[name].items():
            fields[name][field]["description"] = meaning
    return schema


def print_schema(output: CommandOutput, schema: Mapping[str, Any]) -> None:
    """Print a schema for a person to read, or on one line."""
    if output.json:
        output.document(schema)
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(schema), indent=2))
