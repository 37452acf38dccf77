"""The Transaction on one connection: it collects changes, and writes them in as few round trips as possible."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, LiteralString, cast

from psycopg.errors import DivisionByZero, UniqueViolation
from psycopg.rows import DictRow

from kingdom.backends.postgres.connection import Call, Connection, JoinedConnection
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.rows import (
    carried_rows,
    copies_parameters,
    entry_rows,
    event_parameters,
    is_carried,
    is_ordered,
    is_plain,
    many_parameters,
    read_record,
    search_name,
    search_parameters,
    to_json,
    without_event,
)
from kingdom.backends.postgres.writing import (
    COPIES_PER_STATEMENT,
    Check,
    Queries,
    Statement,
    by_token,
    insert_statements,
    keys_to_lock,
    ordered_copies,
    outcome_statement,
    put_statement,
    settle_statement,
    write_statement,
)
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Done, Release
from kingdom.bus.port import EventCopy, Settlement, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.stream import Topology
from kingdom.errors import LeaseLost, Misconfigured


class PostgresTransaction(Transaction):
    """One transaction, which begins with the statements `opening`; without them it is part of the caller's transaction.

    It begins when it needs a lock. A read needs no lock, and sees everything committed. A single statement needs
    no opening if the session already has the right defaults (`may_skip_opening`).
    """

    def __init__(
        self,
        connection: Connection | JoinedConnection,
        queries: Queries,
        topology: Topology,
        kinds: Mapping[str, RecordKind],
        opening: Sequence[Call],
        *,
        may_skip_opening: bool,
    ) -> None:
        super().__init__(topology, kinds, ())
        self._connection = connection
        self._queries = queries
        self._opening = tuple(opening)
        self._has_begun = False
        self._may_skip_opening = may_skip_opening
        # The deliveries of an optimistic transaction, until their leases are locked.
        self._unchecked: tuple[Delivery, ...] = ()
        # The tokens of the leases that are locked.
        self._locked: set[int] = set()
        # The streams in which a settlement may have made an event due.
        self.streams_with_due: set[str] = set()

    async def hold(self, deliveries: Sequence[Delivery], *, optimistic: bool = False) -> None:
        """Lock the leases of these deliveries, and set `held` to the deliveries that their leases still own.

        An `optimistic` transaction does so with its first read or dedup key, or when it commits.
        """
        if optimistic:
            self.held = self._unchecked = tuple(deliveries)
            return
        rows: list[DictRow] = []
        for token, group in by_token(deliveries).items():
            rows += await self._lock("hold", {"token": token, "ids": [d.position for d in group]})
            self._locked.add(token)
        self._note_held(deliveries, {row["id"]: row for row in rows})

    def _note_held(self, deliveries: Sequence[Delivery], rows: Mapping[int, DictRow]) -> None:
        """Set `held` and `held_at`. `rows` has the result of the statements that locked the leases, by position."""
        behind = {position: row["behind"] for position, row in rows.items()}
        self.held_at = next((row["now"] for row in rows.values()), self.held_at)
        owned = [d for d in deliveries if d.position in behind]
        heads = {d.ordering_key: d.position for d in reversed(owned) if d.ordering_key}
        # The server has lost the settlement of an earlier event of these keys, so their events must not run now.
        overtaking = {key for key, head in heads.items() if behind[head]}
        self.held = tuple(d for d in owned if d.ordering_key not in overtaking)

    async def _check_leases(self) -> None:
        """Lock the leases of an optimistic transaction, and fail if a delivery is no longer owned."""
        deliveries, self._unchecked = self._unchecked, ()
        await self.hold(deliveries)
        self._require_all(deliveries)

    def _require_all(self, deliveries: Sequence[Delivery]) -> None:
        if lost := {each.position for each in deliveries} - {each.position for each in self.held}:
            raise LeaseLost(lost)

    async def commit(self) -> None:
        """Write the collected changes and commit them, in one round trip if possible."""
        with translate_errors():
            if not await self._commit_at_once():
                await self._apply()
                if self._has_begun:
                    await self._pooled.run_and_commit()

    async def apply(self) -> None:
        """Write the collected changes. The caller commits them."""
        with translate_errors():
            await self._apply()

    async def _apply(self) -> None:
        """Write the changes in the fixed lock order: leases, records, keys, events, log."""
        if any(delivery.position not in self.changes.settlements for delivery in self._unchecked):
            await self._check_leases()
        if not self._opening and any(s.ordering_key for s in self.changes.settlements.values()):
            await self._require_read_committed()
        statements = list(self._statements())
        # These statements check the leases. A later check would not find the settled events.
        self._unchecked = ()
        if statements:
            calls = [(sql, parameters) for sql, parameters, _ in statements]
            found = await self._run(*calls)
            for rows, (_, _, check) in zip(found, statements, strict=True):
                if check:
                    check(rows)
        await self._withdraw_known()
        await self._drop_idle_keys()
        await self._complete()

    async def _complete(self) -> None:
        """Write what must come last. A subclass overrides this."""

    async def _commit_at_once(self) -> bool:
        """Write the changes and commit in one round trip, and return whether this was possible.

        It is possible if the statements can check everything themselves. A single statement commits by itself. If a
        check fails, the transaction is rolled back. Then `_apply` writes the changes again, and finds the reason in the
        rows that its statements return.
        """
        if not self._server_can_check():
            return False
        statements = list(self._statements(alone=True))
        if not statements and not self._has_begun:
            return True
        calls: list[Call] = [(sql, parameters) for sql, parameters, _ in statements]
        is_single = len(calls) == 1 and self._may_skip_opening and not self._has_begun
        begin = () if is_single or self._has_begun else self._opening
        run = self._pooled.run if is_single else self._pooled.run_and_commit
        try:
            found = await run(*begin, *calls)
        except (DivisionByZero, UniqueViolation):
            await self._pooled.roll_back()
            self._has_begun = False
            self._locked.clear()
            self._unchecked = self.held
            return False
        for rows, (_, _, check) in zip(found[len(begin) :], statements, strict=True):
            if check:
                check(rows.dicts())
        return True

    def _server_can_check(self) -> bool:
        """Return whether the statements that write the changes can check everything themselves."""
        changes = self.changes
        if changes.only_done:
            return True
        return (
            all(type(each.outcome) is Done for each in changes.settlements.values())
            and all(delivery.position in changes.settlements for delivery in self._unchecked)
            and not any(copy.envelope.event_id_given for copy in changes.copies.values())
            # A dedup key cannot be taken again after a rollback.
            and not self.dedup_keys_taken
        )

    async def _require_read_committed(self) -> None:
        """Refuse a caller's transaction that keeps an old snapshot. It could miss the next event of a key."""
        (row,) = await self._fetch("isolation", {})
        if row["transaction_isolation"] != "read committed":
            raise Misconfigured(
                f"events of an ordered stream cannot be settled in a {row['transaction_isolation']} transaction:"
                " join one that is READ COMMITTED"
            )

    def _statements(self, *, alone: bool = False) -> Iterable[Statement]:
        """Yield the statements that write the changes."""
        settled = list(self.changes.settlements.values())
        puts, entries = list(self.changes.puts.values()), self.changes.entries
        ordered, locks = ordered_copies(self.changes), keys_to_lock(self.changes)
        others = [copy for copy in self.changes.copies.values() if is_plain(copy)]
        carried = [copy for copy in self.changes.copies.values() if is_carried(copy)]
        tokens = {s.token for s in settled} - self._locked
        # A statement that settles locks the lease itself, but then it must be the first one that locks anything.
        is_first = alone and not (puts or entries or ordered or others or carried or locks["lock_keys"])
        if len(tokens) > 1 or (tokens and not is_first):
            yield self._queries["fence"], {"tokens": list(tokens)}, None
        more = bool(settled or others or carried)
        if alone and (len(puts) > 1 or more) and not (ordered or entries or any(put.expected for put in puts)):
            yield from insert_statements(self._queries, self._kinds, puts)
            puts = []
        # One statement for several kinds of changes is cheaper. For a single change, its own statement is cheaper.
        together = len(puts) + bool(ordered or locks["lock_keys"]) + bool(entries) > 1
        if together or (alone and puts and more):
            yield write_statement(self._queries, self._kinds, self.changes, alone=alone)
        elif puts:
            yield put_statement(self._queries, self._kinds, puts[0])
        elif ordered:
            in_keys = {**copies_parameters(ordered), **locks, "alone": alone}
            yield self._queries["publish_ordered"], in_keys, None if alone else self._collect_duplicates(ordered)
        elif locks["lock_keys"]:
            yield self._queries["lock_keys"], locks, None
        yield from self._publish_unordered(others, alone=alone)
        if carried:
            yield self._queries["carry"], {"rows": carried_rows(carried)}, self._collect_duplicates(carried)
        for token, group in by_token(settled).items():
            yield from self._settle_statements(token, group, alone=alone)
        if entries and not together:
            yield self._queries["append"], {"entries": entry_rows(entries)}, None

    def _publish_unordered(self, copies: Sequence[EventCopy], *, alone: bool) -> Iterable[Statement]:
        if len(copies) == 1:
            name, check = ("publish_one_fresh", None) if alone else ("publish_one", self._collect_missing(copies))
            yield self._queries[name], event_parameters(copies[0]), check
            return
        for start in range(0, len(copies), COPIES_PER_STATEMENT):
            some = copies[start : start + COPIES_PER_STATEMENT]
            parameters = copies_parameters(some)
            if alone:
                yield self._queries["publish_fresh"], parameters, None
            else:
                yield self._queries["publish"], {**parameters, "count": len(some)}, self._collect_duplicates(some)

    def _settle_statements(self, token: int, group: list[Settlement], *, alone: bool) -> Iterable[Statement]:
        stream = group[0].stream.name
        together: dict[str, list[int]] = {"release": [], "done": [], "done_ordered": []}
        one_by_one = []
        for settled in group:
            if isinstance(settled.outcome, Done):
                together["done_ordered" if settled.ordering_key else "done"].append(settled.position)
            elif isinstance(settled.outcome, Release):
                together["release"].append(settled.position)
            else:
                one_by_one.append(settled)
        for name, positions in together.items():
            if positions:
                statement = settle_statement(self._queries, name, token, positions, alone=alone)
                yield self._note_promoted(stream, *statement) if name == "done_ordered" else statement
        for settled in one_by_one:
            yield outcome_statement(self._queries, settled)
        if one_by_one or together["release"]:
            self.streams_with_due.add(stream)

    def _note_promoted(
        self, stream: str, sql: LiteralString, parameters: Mapping[str, Any], check: Check | None
    ) -> Statement:
        def check_and_note(rows: list[DictRow]) -> None:
            if check:
                check(rows)
            if rows[0]["promoted"]:
                self.streams_with_due.add(stream)

        return sql, parameters, check_and_note

    def _collect_missing(self, copies: Sequence[EventCopy]) -> Check:
        return lambda rows: self.changes.duplicates.extend(copies[len(rows) :])

    def _collect_duplicates(self, copies: Sequence[EventCopy]) -> Check:
        # A statement returns its rows in any order.
        return lambda rows: self.changes.duplicates.extend(copies[n] for n in sorted(row["n"] for row in rows))

    async def _withdraw_known(self) -> None:
        """Delete the new copies of events that have already ended in their stream, if the publisher chose their ids."""
        refused = {id(copy) for copy in self.changes.duplicates}
        stored = [c for c in self.changes.copies.values() if not is_carried(c)]
        copies = [c for c in stored if c.envelope.event_id_given and id(c) not in refused]
        if not copies:
            return
        ids = [{"n": n, "event_id": c.envelope.event_id, "stream": c.stream.name} for n, c in enumerate(copies)]
        withdrawn = await self._lock("withdraw_known", {"rows": to_json(ids)})
        self._collect_duplicates(copies)(withdrawn)
        heads = [copies[row["n"]] for row in withdrawn if row["was_head"]]
        if heads:
            streams, keys = [c.stream.name for c in heads], [c.envelope.partition_key for c in heads]
            await self._run((self._queries["promote_heads"], {"streams": streams, "keys": keys}))

    async def _drop_idle_keys(self) -> None:
        """Delete the key rows that a publish of duplicates has created."""
        pairs = sorted({(c.stream.name, c.envelope.partition_key) for c in self.changes.duplicates if is_ordered(c)})
        if pairs:
            keys = {"streams": [stream for stream, _ in pairs], "keys": [key for _, key in pairs]}
            await self._run((self._queries["drop_idle_keys"], keys))

    async def _read(self, kind: str, record_id: str) -> Record | None:
        rows = await self._fetch("get_record", {"kind": kind, "id": record_id})
        return read_record(rows[0], self._kinds) if rows else None

    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        parameters: dict[str, Any] = {"kinds": [kind for kind, _ in keys], "record_ids": [each for _, each in keys]}
        if len({delivery.token for delivery in self._unchecked}) != 1:
            return [read_record(row, self._kinds) for row in await self._fetch("get_records", parameters)]
        deliveries, self._unchecked = self._unchecked, ()
        parameters |= {"token": deliveries[0].token, "ids": [delivery.position for delivery in deliveries]}
        rows = await self._lock("hold_and_read", parameters)
        self._locked.add(deliveries[0].token)
        self._note_held(deliveries, {row["position"]: row for row in rows if row["kind"] is None})
        self._require_all(deliveries)
        return [read_record(without_event(row), self._kinds) for row in rows if row["kind"] is not None]

    async def _search(self, query: RecordQuery) -> list[Record]:
        rows = await self._fetch(search_name(query, self._kinds), search_parameters(query, self._kinds))
        return [read_record(row, self._kinds) for row in rows]

    async def _search_many(self, queries: Sequence[RecordQuery]) -> dict[RecordQuery, list[Record]]:
        together = list(dict.fromkeys(query for query in queries if query.index is None))
        found: dict[RecordQuery, list[Record]] = {query: [] for query in together}
        for row in await self._fetch("find_many", many_parameters(together)) if together else ():
            query = together[row.pop("number") - 1]
            # Each branch of the statement returns its rows in order.
            found[query].append(read_record(row, self._kinds))
        return found

    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        if self._unchecked:
            await self._check_leases()
        return bool(await self._lock("once", {"scope": scope, "key": key, "keep": keep}))

    async def _fetch(self, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        """Read something. This needs no transaction, but leases must be checked before."""
        if self._unchecked:
            await self._check_leases()
        with translate_errors():
            (rows,) = await self._connection.fetch((self._queries[name], parameters))
            return rows

    async def _lock(self, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        """Run a statement that locks something until the end of the transaction."""
        with translate_errors():
            (rows,) = await self._run((self._queries[name], parameters))
            return rows

    async def _run(self, *calls: Call) -> list[list[DictRow]]:
        """Run statements in the transaction, and begin it before if needed."""
        begin = () if self._has_begun else self._opening
        self._has_begun = True
        return (await self._connection.fetch(*begin, *calls))[len(begin) :]

    @property
    def _pooled(self) -> Connection:
        # A joined transaction is never committed here.
        return cast("Connection", self._connection)
