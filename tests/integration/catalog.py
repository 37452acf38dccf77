"""Read all parts of a schema from PostgreSQL's catalogs, to compare two databases."""

from typing import Any, LiteralString

import psycopg

# Queries by part. Every row is text, so that no conversion loses anything.
_PARTS: dict[str, LiteralString] = {
    "relations": """
        SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, c.relispartition, c.relrowsecurity,
               pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), am.amname
          FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam
         WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1""",
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, pg_get_expr(d.adbin, d.adrelid), l.collname, a.attstorage, a.attoptions
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          LEFT JOIN pg_collation l ON l.oid = a.attcollation
         WHERE c.relnamespace = %(schema)s::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
           AND c.relkind IN ('r', 'p', 'v') ORDER BY 1, 2""",
    "indexes": """
        SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisunique, i.indisvalid, x.reloptions
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class x ON x.oid = i.indexrelid
         WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1""",
    "constraints": """
        SELECT r.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated
          FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid
         WHERE k.connamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
    "views": """
        SELECT relname, pg_get_viewdef(oid) FROM pg_class
         WHERE relnamespace = %(schema)s::regnamespace AND relkind = 'v' ORDER BY 1""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
         WHERE pronamespace = %(schema)s::regnamespace ORDER BY 1""",
    "triggers": """
        SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
    "comments": """
        SELECT c.relname, d.objsubid, d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid
         WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
}
Catalog = dict[str, list[tuple[Any, ...]]]


def read_catalog(dsn: str, schema: str, *, without: frozenset[str] = frozenset()) -> Catalog:
    """Return every part of a schema, without the relations in `without` and their parts."""
    with psycopg.connect(dsn) as connection:
        parts = {part: connection.execute(query, {"schema": schema}).fetchall() for part, query in _PARTS.items()}
    return {part: [row for row in found if row[0] not in without] for part, found in parts.items()}
