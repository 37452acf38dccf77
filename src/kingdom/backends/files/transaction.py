"""The Transaction on files: everything is collected, and written in one entry when the block ends."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kingdom.backends.files.bodies import document
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import Card, Stored
from kingdom.backends.files.keyring import Keyring
from kingdom.backends.files.store import Store
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import EventCopy, Put, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.stream import Topology
from kingdom.errors import Conflict, LeaseLost

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class FilesTransaction(Transaction):
    """One transaction; it holds no lock while it is open, and finds out at its end whether somebody was faster."""

    def __init__(
        self,
        store: Store,
        topology: Topology,
        kinds: Mapping[str, RecordKind],
        keyring: Keyring,
        in_thread: InThread,
    ) -> None:
        super().__init__(topology, kinds, ())
        self._store = store
        self._keyring = keyring
        self._in_thread = in_thread
        self._taken: dict[tuple[str, str], float] = {}

    async def hold(self, deliveries: Sequence[Delivery]) -> None:
        """Keep those deliveries that are still ours."""
        if deliveries:
            owned = self._store.owned_now(deliveries)
            if owned is None:
                owned = await self._in_thread(lambda: self._store.owned(deliveries))
            self.held, self.held_at = tuple(owned), datetime.fromtimestamp(time.time(), UTC)

    async def apply(self) -> None:
        """Write everything that was collected, if there is anything."""
        changes = self.changes
        if changes.puts or changes.copies or changes.settlements or changes.entries or self._taken:
            await self._in_thread(self._commit)

    def end(self) -> None:
        """Give back the dedup keys that this transaction kept others from."""
        self._keyring.give_back(self)

    def _commit(self) -> None:
        store, changes = self._store, self.changes
        # Encoded before the lock is taken: whoever waits for it waits less.
        documents = {key: document(put.record.doc) for key, put in changes.puts.items()}
        with store.exclusive() as draft:
            settled = list(changes.settlements.values())
            # What is held but not settled must be ours too: no lock was kept since it was asked for.
            if lost := draft.lost(settled, self.held):
                raise LeaseLost(lost)
            for scope, key in self._taken:
                if store.tree.is_taken(scope, key, draft.now):
                    raise Conflict(f"the dedup key {scope}/{key} was taken by another process meanwhile: ask again")
            draft.entry.records = [self._stored(put, documents[key], draft) for key, put in changes.puts.items()]
            handled = {key: copy for key, copy in changes.copies.items() if self._has_ended(copy)}
            changes.duplicates += handled.values()
            changes.duplicates += draft.publish([copy for key, copy in changes.copies.items() if key not in handled])
            draft.settle(settled, store.body)
            draft.entry.once = [(scope, key, expires) for (scope, key), expires in self._taken.items()]
            draft.say(*changes.entries)
            store.commit(draft)

    def _has_ended(self, copy: EventCopy) -> bool:
        """Tell whether an event was handled already; nobody else can have an id that we have made."""
        envelope = copy.envelope
        return envelope.event_id_given and self._store.tree.has_ended(copy.stream.name, str(envelope.event_id))

    def _stored(self, put: Put, doc: msgspec.Raw, draft: Draft) -> Stored:
        record = put.record
        card = self._store.shelf.card(record.kind, record.id)
        if (card.version if card else 0) != put.expected:
            raise Conflict(f"{record.kind} {record.id} is not at version {put.expected} any more: read it again")
        kind = self._kinds[record.kind]
        final = kind.is_final(record.state, record.doc)
        ended_at = (card and card.ended_at) or draft.now
        new = Card(
            kind=record.kind,
            id=record.id,
            version=record.version,
            state=record.state,
            owner=record.owner,
            due_at=record.due_at.timestamp() if record.due_at else None,
            created_at=card.created_at if card else draft.now,
            updated_at=draft.now,
            ended_at=ended_at if final else None,
        )
        return Stored(new, doc, kind.directories[new.state], kind.directories[card.state] if card else None)

    async def _read(self, kind: str, record_id: str) -> Record | None:
        return next(iter(await self._read_many([(kind, record_id)])), None)

    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        def read() -> list[Record]:
            with self._store.shared():
                return [record for key in keys if (record := self._store.shelf.get(*key))]

        found: list[Record] = await self._in_thread(read)
        return found

    async def _search(self, query: RecordQuery) -> list[Record]:
        def search() -> list[Record]:
            with self._store.shared():
                return self._store.shelf.find(query)

        found: list[Record] = await self._in_thread(search)
        return found

    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        if (scope, key) in self._taken:
            return False
        await self._keyring.take(self, scope, key)

        def look() -> bool:
            with self._store.shared():
                return self._store.tree.is_taken(scope, key, time.time())

        if await self._in_thread(look):
            return False
        self._taken[scope, key] = time.time() + keep.total_seconds()
        return True
