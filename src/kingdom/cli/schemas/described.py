"""JSON schemas with a description of every field, which editors show."""

from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from kingdom.cli.framework.output import CommandOutput

# Descriptions of fields: by the name of their type in the schema, then by the name of the field.
Words = Mapping[str, Mapping[str, str]]


def schema_of(kind: type, words: Words) -> dict[str, Any]:
    """Return the schema of a file. Raise LookupError unless `words` describes exactly the fields of the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    fields = {name: each["properties"] for name, each in schema["$defs"].items() if "properties" in each}
    for name in fields.keys() | words.keys():
        if differing := fields.get(name, {}).keys() ^ words.get(name, {}).keys():
            raise LookupError(f"the descriptions of {name} do not match its fields: add or remove {sorted(differing)}")
        for field, meaning in words[name].items():
            fields[name][field]["description"] = meaning
    return schema


def print_schema(output: CommandOutput, schema: Mapping[str, Any]) -> None:
    """Print a schema, indented for a person or on one line."""
    if output.json:
        output.document(schema)
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(schema), indent=2))
