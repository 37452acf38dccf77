"""The transaction on files. It collects all changes and writes them as one journal entry at the end."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kingdom.backends.files.journal.entry import RecordHeader, RecordWrite
from kingdom.backends.files.key_locks import KeyLocks
from kingdom.backends.files.store import Store
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.file_formats import encode_document
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import EventCopy, Put, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.stream import Topology
from kingdom.errors import Conflict, LeaseLost

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class FilesTransaction(Transaction):
    """One transaction. It holds no lock while it is open, and detects conflicts when it commits."""

    def __init__(
        self,
        store: Store,
        topology: Topology,
        kinds: Mapping[str, RecordKind],
        key_locks: KeyLocks,
        in_thread: InThread,
    ) -> None:
        super().__init__(topology, kinds, ())
        self._store = store
        self._key_locks = key_locks
        self._in_thread = in_thread
        self._taken: dict[tuple[str, str], float] = {}

    async def hold(self, deliveries: Sequence[Delivery]) -> None:
        """Hold the deliveries that this process still owns."""
        if deliveries:
            owned = self._store.filter_owned_now(deliveries)
            if owned is None:
                owned = await self._in_thread(lambda: self._store.filter_owned(deliveries))
            self.held, self.held_at = tuple(owned), datetime.fromtimestamp(time.time(), UTC)

    async def apply(self) -> None:
        """Commit the collected changes, if there are any."""
        changes = self.changes
        if changes.puts or changes.copies or changes.settlements or changes.entries or self._taken:
            await self._in_thread(self._commit)

    def end(self) -> None:
        """Release the dedup keys of this transaction."""
        self._key_locks.release(self)

    def _commit(self) -> None:
        store, changes = self._store, self.changes
        # Encode before taking the lock, so that the lock is held for a shorter time.
        documents = {key: encode_document(put.record.doc) for key, put in changes.puts.items()}
        with store.exclusive() as plan:
            settled = list(changes.settlements.values())
            # All held deliveries must still be owned, also those that are not settled.
            if lost := plan.find_lost(settled, self.held):
                raise LeaseLost(lost)
            for scope, key in self._taken:
                if store.tree.is_key_taken(scope, key, plan.now):
                    raise Conflict(f"another process has taken the dedup key {scope}/{key} meanwhile: try again")
            plan.entry.records = [self._record_write(put, documents[key], plan) for key, put in changes.puts.items()]
            archived = {key: copy for key, copy in changes.copies.items() if self._is_archived(copy)}
            changes.duplicates += archived.values()
            changes.duplicates += plan.publish([copy for key, copy in changes.copies.items() if key not in archived])
            plan.settle(settled, store.take_body)
            plan.entry.once = [(scope, key, expires) for (scope, key), expires in self._taken.items()]
            plan.log(*changes.entries)
            store.commit(plan)

    def _is_archived(self, copy: EventCopy) -> bool:
        """Return whether an event has already ended. Only ids that a publisher chose can be published twice."""
        envelope = copy.envelope
        return envelope.event_id_given and self._store.tree.is_archived(copy.stream.name, str(envelope.event_id))

    def _record_write(self, put: Put, doc: msgspec.Raw, plan: TransactionPlan) -> RecordWrite:
        record = put.record
        header = self._store.records.get_header(record.kind, record.id)
        if (header.version if header else 0) != put.expected:
            raise Conflict(f"{record.kind} {record.id} is no longer at version {put.expected}: read it again")
        kind = self._kinds[record.kind]
        final = kind.is_final(record.state, record.doc)
        ended_at = (header and header.ended_at) or plan.now
        index_1, index_2, index_3 = kind.index_values(record.indexed)
        new = RecordHeader(
            kind=record.kind,
            id=record.id,
            version=record.version,
            state=record.state,
            index_1=index_1,
            index_2=index_2,
            index_3=index_3,
            due_at=record.due_at.timestamp() if record.due_at else None,
            created_at=header.created_at if header else plan.now,
            updated_at=plan.now,
            ended_at=ended_at if final else None,
        )
        return RecordWrite(new, doc, kind.directories[new.state], kind.directories[header.state] if header else None)

    async def _read(self, kind: str, record_id: str) -> Record | None:
        return next(iter(await self._read_many([(kind, record_id)])), None)

    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        def read() -> list[Record]:
            with self._store.shared():
                return [record for key in keys if (record := self._store.records.get(*key))]

        found: list[Record] = await self._in_thread(read)
        return found

    async def _search(self, query: RecordQuery) -> list[Record]:
        return (await self._search_many([query]))[query]

    async def _search_many(self, queries: Sequence[RecordQuery]) -> dict[RecordQuery, list[Record]]:
        def search() -> dict[RecordQuery, list[Record]]:
            with self._store.shared():
                return {query: self._store.records.find(query) for query in queries}

        found: dict[RecordQuery, list[Record]] = await self._in_thread(search) if queries else {}
        return found

    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        if (scope, key) in self._taken:
            return False
        await self._key_locks.acquire(self, scope, key)

        def look() -> bool:
            with self._store.shared():
                return self._store.tree.is_key_taken(scope, key, time.time())

        if await self._in_thread(look):
            return False
        self._taken[scope, key] = time.time() + keep.total_seconds()
        return True
