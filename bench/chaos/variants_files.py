"""Broken variants of the bus on files. Each patches its classes in its own process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.chaos.variants import forget_renewals, rely_on_leases, replace, variants_of
from kingdom.backends.files import FilesBus, store
from kingdom.backends.files.books import StreamBook
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import PROCESSING, Entry, Lease, LogPart, Row
from kingdom.backends.files.lock import Lock, holders_of, is_stopped
from kingdom.backends.files.replay import Replay
from kingdom.backends.files.store import Store
from kingdom.backends.files.transaction import FilesTransaction
from kingdom.backends.files.tree import Tree
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Settlement
from kingdom.bus.stream import Stream
from kingdom.verify.script import ScriptRunner

_SEGMENT_BYTES = 256 << 10


def no_fence() -> None:
    """Settle and renew without checking the token."""
    settle = Draft.settle

    def lost(_: Draft, _settled: Sequence[Settlement], _held: Sequence[Delivery]) -> set[int]:
        return set()

    def settle_what_is_there(draft: Draft, settled: Sequence[Settlement], body: Callable[[Row], msgspec.Raw]) -> None:
        there = [each for each in settled if each.position in draft.books.stream(each.stream.name).rows]
        settle(draft, there, body)

    async def hold_all(transaction: FilesTransaction, deliveries: Sequence[Delivery]) -> None:
        transaction.held = tuple(deliveries)

    rely_on_leases()
    replace(Draft, "lost", lost)
    replace(Draft, "settle", settle_what_is_there)
    replace(FilesTransaction, "hold", hold_all)
    forget_renewals(FilesBus)


def blame_batch() -> None:
    """Count every event of a lost lease as lost alone, and claim suspects together."""
    reap = Draft.reap

    def blame_all(draft: Draft, lease: Lease) -> int:
        return reap(draft, msgspec.structs.replace(lease, positions=lease.positions[:1]))

    def claim_all(draft: Draft, stream: Stream, limit: int) -> list[Row]:
        book = draft.books.stream(stream.name)
        found = book.take_due(draft.now, limit)
        book.put_back(found)
        return found

    replace(Draft, "reap", blame_all)
    replace(Draft, "claimable", claim_all)


def no_replay() -> None:
    """Do not repair the files after a crash."""

    def leave(_: Replay, *, thorough: bool) -> None:
        del thorough

    replace(Replay, "run", leave)


def files_first() -> None:
    """Write the files first and the journal after them."""
    commit = Store.commit

    def commit_late(writer: Store, draft: Draft, *, durable: bool = True, wait: bool = True) -> None:
        apply, entry = writer.tree.apply, draft.finish()
        apply(entry, draft.before, writer.tree.render(entry))
        replace(writer.tree, "apply", lambda *_: None)
        commit(writer, draft, durable=durable, wait=wait)
        replace(writer.tree, "apply", apply)

    replace(Store, "commit", commit_late)


def endless_patience() -> None:
    """Wait for a stopped lock holder until it wakes up."""

    def let_live(_: Lock, _stopped: list[int]) -> None:
        return

    replace(Lock, "_kill", let_live)


def two_writers() -> None:
    """Ignore the lock while its holder is stopped, and do not kill the holder."""
    attempt = Lock._try
    ignored: set[int] = set()

    def ignore(_: Lock, stopped: list[int]) -> None:
        ignored.update(stopped)

    def barge_in(lock: Lock, mode: int) -> bool:
        return attempt(lock, mode) or any(pid in ignored and is_stopped(pid) for pid in holders_of(lock._status))

    replace(Lock, "_kill", ignore)
    replace(Lock, "_try", barge_in)


def no_pause() -> None:
    """Claim events of a paused stream."""
    claimable = Draft.claimable

    def ignore_pauses(draft: Draft, stream: Stream, limit: int) -> list[Row]:
        pauses = dict(draft.books.pauses)
        draft.books.pauses.clear()
        found = claimable(draft, stream, limit)
        draft.books.pauses.update(pauses)
        return found

    replace(Draft, "claimable", ignore_pauses)


def wrong_head() -> None:
    """Run the last event of a key after the first one."""
    next_head = StreamBook.next_head

    def last_of_line(book: StreamBook, key: str) -> Row | None:
        head = next_head(book, key)
        return head if head is None or head.status == PROCESSING else book.rows[book.lines[key].open[-1]]

    replace(StreamBook, "next_head", last_of_line)


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
    apply, add_log = Tree.apply, Tree._add_log
    scripts: dict[str, Mapping[str, str]] = {}

    def note_scripts(tree: Tree, entry: Entry, before: Mapping[int, Row | None], files: Mapping[str, bytes]) -> None:
        for ended in entry.ended:
            event: dict[str, Any] = msgspec.json.decode(ended.line)["event"]
            scripts[event["eventId"]] = event["payload"]["script"]
        apply(tree, entry, before, files)
        scripts.clear()

    def act_first(tree: Tree, part: LogPart) -> None:
        for event_id, script in scripts.items():
            ScriptRunner(Path(tree.layout.temporary)).run_now(script, event_id, "commit")
        add_log(tree, part)

    replace(Tree, "apply", note_scripts)
    replace(Tree, "_add_log", act_first)
