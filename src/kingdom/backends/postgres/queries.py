"""Named queries, read from the `.sql` files beside this module."""

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

from kingdom.errors import Misconfigured

DEFAULT_SCHEMA = "kingdom"
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")


def in_schema(sql: str, schema: str) -> LiteralString:
    """Return the SQL, which names the default schema, for another one."""
    if not _SCHEMA_NAME.fullmatch(schema):
        raise Misconfigured(f"schema name {schema!r}: use lower-case letters, digits and _, at most 51 of them")
    # The text comes from our own files and the name was checked, so this is as literal as SQL in a string.
    return sql.replace(f"{DEFAULT_SCHEMA}.", f"{schema}.")


@cache
def load_queries(schema: str) -> dict[str, LiteralString]:
    """Return all named queries for one schema."""
    queries: dict[str, LiteralString] = {}
    folder = files(__package__) / "sql"
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            queries[name] = in_schema(_COMMENT.sub("", body).strip().rstrip(";"), schema)
    return queries
