"""Mutants that no check notices, each with the reason why it breaks no promise; docs/guarantees.md repeats it."""

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {
    "backends/postgres/sql/settle.sql done_ordered: drops the predicate"
    " 'e.lease_token = (SELECT token FROM fenced_lease)'": (
        "no two leases hold events of one key, so an event in flight that the lease lists is in flight under this lease"
    ),
    'backends/postgres/sql/publish.sql write: turns ORDER BY kind, id COLLATE "C" around': (
        "every transaction then locks its records in the opposite order, which prevents deadlocks as well"
    ),
    "backends/postgres/sql/publish.sql write: drops the predicate '(SELECT count(*) FROM stored) >= 0'": (
        "the result names the refused records first, so they are stored and locked before the keys anyway; the"
        " condition only makes that order independent of the plan"
    ),
    "backends/postgres/bus.py PostgresBus.claim: takes and for or in 'declared.ordered and not has_suspect'": (
        "it only changes from how many keys the next claim takes its events"
    ),
    "bus/effects/perform.py _read_ledgers:"
    " skips 'await transaction.read_ahead([(EFFECTS.name, each) for each in ids])'": (
        "each ledger is then read by a statement of its own"
    ),
}
