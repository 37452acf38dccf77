"""Mutants that no check notices, each with the reason why it breaks no promise; docs/guarantees.md repeats it."""

from collections.abc import Mapping

EXPLAINED: Mapping[str, str] = {
    "backends/postgres/sql/settle.sql done_ordered: drops the predicate"
    " 'e.lease_token = (SELECT token FROM fenced_lease)'": (
        "no two leases hold events of one key, so an event in flight that the lease lists is in flight under this lease"
    ),
    "backends/postgres/sql/claim.sql claim_ordered: forgets - 1": (
        "a run of one key may be one event longer; the limit of the claim holds"
    ),
    "backends/postgres/sql/settle.sql release: drops the lock FOR KEY SHARE": (
        "an event that was requeued meanwhile has another status or token, which the update checks again in its row"
    ),
    "backends/postgres/sql/operations.sql remove_records: drops the predicate"
    " 'ended_at < now() - %(keep)s::interval'": (
        "the deletion checks the age again; the inner predicate only lets an index find the old records"
    ),
    "backends/postgres/sql/lease.sql reap_orphans: drops the predicate 'heads.ordered'": (
        "an unordered event has no followers under its lease; the predicate only saves the search for them"
    ),
    "backends/postgres/transaction.py PostgresTransaction._copy_fresh: does 'await copying.write(lines)' twice": (
        "the ids are then there twice, so the other statement publishes the events, with the same result"
    ),
    "backends/files/store.py Store._is_nearly_current: turns 'segment != journal.start' around": (
        "it only decides whether the event loop or a thread reads the rest of the journal"
    ),
    "bus/worker/worker.py Worker._fetch_until_stopped: turns 'not done' around": (
        "it only decides whether a warning is logged"
    ),
    "bus/worker/worker.py Worker._drain: skips 'self._stop_waiting_units()'": (
        "the events of the last claim then wait for a slot, and are handled or released when the grace is over"
    ),
    "bus/worker/worker.py Worker._finished: skips 'self._keeper.drop(token)'": (
        "the next renewal finds that the lease has ended, and the keeper then drops it"
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
}
