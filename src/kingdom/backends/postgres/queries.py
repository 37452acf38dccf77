"""Read named queries, and the fragments that they share, from the files in the folder `sql`."""

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

from kingdom.errors import Misconfigured

DEFAULT_SCHEMA = "kingdom"
_SECTION = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"%\((\w+)\)s")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")


def in_schema(sql: str, schema: str) -> LiteralString:
    """Return SQL with the default schema replaced by another schema."""
    if not _SCHEMA_NAME.fullmatch(schema):
        raise Misconfigured(f"schema name {schema!r}: use at most 51 lower-case letters, digits and _")
    # The text comes from our own files and the name is checked, so this is as safe as a literal string.
    return sql.replace(f"{DEFAULT_SCHEMA}.", f"{schema}.")


@cache
def numbered(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a query as libpq takes it, with $1 instead of %(name)s, and the names of its parameters in this order."""
    numbers = {parameter: n for n, parameter in enumerate(dict.fromkeys(_PARAMETER.findall(sql)), 1)}
    text = _PARAMETER.sub(lambda found: f"${numbers[found[1]]}", sql).replace("%%", "%")
    return text.encode(), tuple(numbers)


@cache
def load_queries(schema: str) -> dict[str, LiteralString]:
    """Return all named queries for one schema."""
    sections: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    for file in (files(__package__) / "sql").iterdir():
        parts = _SECTION.split(file.read_text(encoding="utf-8"))
        for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            sections[kind][name] = _COMMENT.sub("", body).strip().rstrip(";")

    def expand(body: str) -> str:
        return _PLACEHOLDER.sub(lambda found: expand(sections["fragment"][found[1]]), body)

    return {name: in_schema(expand(body), schema) for name, body in sections["name"].items()}
