"""Broken variants of the bus on files. Each one patches its classes in its own process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.chaos.variants import forget_renewals, rely_on_leases, replace, variants_of
from kingdom.backends.files import FilesBus, store
from kingdom.backends.files.index.event_index import StreamIndex
from kingdom.backends.files.journal.entry import PROCESSING, EventRow, JournalEntry, Lease, LogLines
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.lock import StoreLock
from kingdom.backends.files.system.processes import holders_of, is_stopped
from kingdom.backends.files.transaction import FilesTransaction
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.replay import Replay
from kingdom.backends.files.tree.tree import FileTree
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Settlement
from kingdom.bus.stream import Stream
from kingdom.verify.script import ScriptRunner

_SEGMENT_BYTES = 256 << 10


def no_fence() -> None:
    """Settle and renew without checking the token."""
    settle = TransactionPlan.settle

    def find_none(_: TransactionPlan, _settled: Sequence[Settlement], _held: Sequence[Delivery]) -> set[int]:
        return set()

    def settle_what_is_there(
        plan: TransactionPlan, settled: Sequence[Settlement], body: Callable[[EventRow], msgspec.Raw]
    ) -> None:
        there = [each for each in settled if each.position in plan.events.stream(each.stream.name).rows]
        settle(plan, there, body)

    async def hold_all(transaction: FilesTransaction, deliveries: Sequence[Delivery]) -> None:
        transaction.held = tuple(deliveries)

    rely_on_leases()
    replace(TransactionPlan, "find_lost", find_none)
    replace(TransactionPlan, "settle", settle_what_is_there)
    replace(FilesTransaction, "hold", hold_all)
    forget_renewals(FilesBus)


def blame_batch() -> None:
    """Count a lost lease against each of its events as if the event had been alone, and claim suspects together."""
    reap = TransactionPlan.reap

    def blame_all(plan: TransactionPlan, lease: Lease) -> int:
        return reap(plan, msgspec.structs.replace(lease, positions=lease.positions[:1]))

    def claim_all(plan: TransactionPlan, stream: Stream, limit: int) -> list[EventRow]:
        index = plan.events.stream(stream.name)
        found = index.pop_due(plan.now, limit)
        index.put_back(found)
        return found

    replace(TransactionPlan, "reap", blame_all)
    replace(TransactionPlan, "select_claimable", claim_all)


def no_replay() -> None:
    """Do not replay the journal after a crash."""

    def leave(_: Replay, *, thorough: bool) -> None:
        del thorough

    replace(Replay, "run", leave)


def files_first() -> None:
    """Write the files before the journal."""
    commit = Store.commit

    def commit_late(writer: Store, plan: TransactionPlan, *, durable: bool = True, wait: bool = True) -> None:
        apply, entry = writer.tree.apply, plan.finish()
        apply(entry, plan.before, writer.tree.render(entry))
        replace(writer.tree, "apply", lambda *_: None)
        commit(writer, plan, durable=durable, wait=wait)
        replace(writer.tree, "apply", apply)

    replace(Store, "commit", commit_late)


def endless_patience() -> None:
    """Wait for a stopped lock holder until it wakes up."""

    def let_live(_: StoreLock, _stopped: list[int]) -> None:
        return

    replace(StoreLock, "_kill", let_live)


def two_writers() -> None:
    """Ignore the lock while its holder is stopped, without killing the holder."""
    attempt = StoreLock._try
    ignored: set[int] = set()

    def ignore(_: StoreLock, stopped: list[int]) -> None:
        ignored.update(stopped)

    def barge_in(lock: StoreLock, mode: int) -> bool:
        return attempt(lock, mode) or any(pid in ignored and is_stopped(pid) for pid in holders_of(lock._status))

    replace(StoreLock, "_kill", ignore)
    replace(StoreLock, "_try", barge_in)


def no_pause() -> None:
    """Claim the events of a paused stream."""
    select_claimable = TransactionPlan.select_claimable

    def ignore_pauses(plan: TransactionPlan, stream: Stream, limit: int) -> list[EventRow]:
        pauses = dict(plan.events.pauses)
        plan.events.pauses.clear()
        found = select_claimable(plan, stream, limit)
        plan.events.pauses.update(pauses)
        return found

    replace(TransactionPlan, "select_claimable", ignore_pauses)


def wrong_head() -> None:
    """Promote the last event of a key instead of the next one."""
    next_head = StreamIndex.next_head

    def last_of_queue(index: StreamIndex, key: str) -> EventRow | None:
        head = next_head(index, key)
        return head if head is None or head.status == PROCESSING else index.rows[index.queues[key].open[-1]]

    replace(StreamIndex, "next_head", last_of_queue)


FILES_VARIANTS: Mapping[str, Callable[[], None]] = {
    **variants_of(FilesBus),
    **{
        variant.__name__: variant
        for variant in (
            no_fence,
            no_pause,
            blame_batch,
            no_replay,
            files_first,
            endless_patience,
            two_writers,
            wrong_head,
        )
    },
}


def many_checkpoints() -> None:
    """Start a new journal segment about every second instead of every few minutes."""
    replace(store, "SEGMENT_BYTES", _SEGMENT_BYTES)


def script_commits() -> None:
    """Let a script stop or kill a process after it has written the journal and half of the files."""
    apply, append_log = FileTree.apply, FileTree._append_log
    scripts: dict[str, Mapping[str, str]] = {}

    def note_scripts(
        tree: FileTree, entry: JournalEntry, before: Mapping[int, EventRow | None], files: Mapping[str, bytes]
    ) -> None:
        for ended in entry.ended:
            event: dict[str, Any] = msgspec.json.decode(ended.line)["event"]
            scripts[event["eventId"]] = event["payload"]["script"]
        apply(tree, entry, before, files)
        scripts.clear()

    def act_first(tree: FileTree, part: LogLines) -> None:
        for event_id, script in scripts.items():
            ScriptRunner(Path(tree.layout.temporary)).run_now(script, event_id, "commit")
        append_log(tree, part)

    replace(FileTree, "apply", note_scripts)
    replace(FileTree, "_append_log", act_first)
