"""Broken variants of the bus on PostgreSQL. Each patches its queries or classes in its own process."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from bench.chaos.variants import forget_renewals, rely_on_leases, replace, variants_of
from bench.chaos.variants import split_keys as split_keys_anywhere
from kingdom.backends.postgres import PostgresBus
from kingdom.backends.postgres import bus as postgres_bus
from kingdom.backends.postgres.queries import load_queries


def no_fence() -> None:
    """Settle and renew without checking the token."""
    fenced = ("hold", "hold_and_read", "done", "done_ordered", "dead", "dead_ordered", "reschedule")
    checked = (r"lease_token = \(SELECT token FROM fenced_lease\) AND ", "")
    released = (r"AND lease_token = \(SELECT token FROM \S+ WHERE token = %\(token\)s\)", "")
    rewrite(dict.fromkeys(fenced, checked) | {"release": released})

    rely_on_leases()
    forget_renewals(PostgresBus)


def blame_batch() -> None:
    """Count a lost lease against each of its events as if the event had been alone, and claim suspects together."""
    together = {"claim": (r"CASE WHEN \(SELECT crash_count FROM due LIMIT 1\).*?\bEND\b", "true")}
    blamed = {"reap": (r"CASE WHEN lease_token = ANY\(.*?\bEND\b", "greatest(2 - crash_count, 1)")}
    rewrite(together | blamed)


def no_pause() -> None:
    """Claim the events of a paused stream."""
    condition = (r"AND NOT EXISTS \(SELECT FROM \S*outbox_pause WHERE stream = %\(stream\)s\)", "")
    rewrite(dict.fromkeys(("claim", "claim_ordered"), condition))


def split_keys() -> None:
    """Run the events of one key in parallel if they were claimed together, and settle them in any order."""
    split_keys_anywhere()
    guard = (r"\bAND next_retry_at < 'infinity'", "")
    never_behind = ("next_retry_at = 'infinity' AS behind", "false AS behind")
    rewrite(
        {
            "hold": never_behind,
            "hold_and_read": never_behind,
            "done_ordered": (r"\bWHERE due < 'infinity'", ""),
            "dead_ordered": guard,
            "reschedule": guard,
        }
    )


POSTGRES_VARIANTS: Mapping[str, Callable[[], None]] = {
    **variants_of(PostgresBus),
    **{
        variant.__name__: variant
        for variant in (
            no_fence,
            blame_batch,
            no_pause,
            split_keys,
        )
    },
}


def rewrite(changes: Mapping[str, tuple[str, str]]) -> None:
    """Rewrite named queries. Raise LookupError if a pattern does not match any more."""

    def broken(schema: str) -> dict[str, Any]:
        queries: dict[str, Any] = dict(load_queries(schema))
        for name, (pattern, replacement) in changes.items():
            queries[name], count = re.subn(pattern, replacement, queries[name], flags=re.DOTALL)
            if not count:
                raise LookupError(f"query {name} no longer matches {pattern!r}")
        return queries

    replace(postgres_bus, "load_queries", broken)
