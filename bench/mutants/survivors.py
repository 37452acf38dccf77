"""Mutants that no check notices, each with the reason why it breaks no promise; docs/guarantees.md repeats it."""

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {
    "backends/postgres/sql/settle.sql done_ordered: drops the predicate"
    " 'e.lease_token = (SELECT token FROM fenced_lease)'": (
        "no two leases hold events of one key, so an event in flight that the lease lists is in flight under this lease"
    ),
    "backends/postgres/bus.py PostgresBus.transaction: does"
    " 'self._leases.lose(item for item in items if item.position in lost.pos…' twice": (
        "it only notes in memory which events are settled, and noting them again changes nothing"
    ),
    "backends/postgres/bus.py PostgresBus.claim: takes and for or in 'declared.ordered and not has_suspect'": (
        "it only changes from how many keys the next claim takes its events"
    ),
}
