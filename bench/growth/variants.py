"""Statements that look right but do not scale: a bound must detect each one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import LiteralString


@dataclass(frozen=True, slots=True)
class Variant:
    """One wrong way to write a statement."""

    query: str
    right: str
    wrong: str

    def applied(self, queries: Mapping[str, LiteralString]) -> dict[str, LiteralString]:
        """Return the queries with this statement replaced by its broken form."""
        text: str = queries[self.query]
        if self.right not in text:
            raise ValueError(f"{self.query} no longer contains {self.right!r}, so this variant proves nothing")
        return {**queries, self.query: text.replace(self.right, self.wrong)}


VARIANTS = {
    "by-creation": Variant("claim", "ORDER BY next_retry_at, id", "ORDER BY created_at, id"),
    "any-stream": Variant("claim", "WHERE stream = %(stream)s AND", "WHERE stream = ANY(ARRAY[%(stream)s]) AND"),
    "no-watermark": Variant("claim", " AND next_retry_at >= %(watermark)s::timestamptz", ""),
    "volatile-now": Variant(
        "claim_ordered", "next_retry_at <= statement_timestamp()", "next_retry_at <= clock_timestamp()"
    ),
    "look-from-the-start": Variant(
        "done_ordered", "AND e.id > last.id ORDER BY", "AND NOT e.id = ANY(%(ids)s::bigint[]) ORDER BY"
    ),
}
