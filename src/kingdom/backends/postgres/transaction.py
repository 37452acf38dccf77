"""The Transaction on one connection: it collects changes and writes them as one pipeline of statements."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, LiteralString, TypeVar

from psycopg import AsyncConnection, AsyncCursor
from psycopg.errors import DivisionByZero, UniqueViolation
from psycopg.rows import DictRow, dict_row

from kingdom.backends.postgres.connection import keep_cancellation
from kingdom.backends.postgres.faults import translate_errors
from kingdom.backends.postgres.rows import (
    carried_rows,
    entry_rows,
    event_parameters,
    event_table_line,
    is_carried,
    is_ordered,
    is_plain,
    may_need_cleanup,
    read_record,
    rows_of_copies,
    staging_table_row,
    to_json,
    without_event,
)
from kingdom.backends.postgres.writing import (
    Check,
    Queries,
    Statement,
    keys_to_lock,
    ordered_copies,
    put_statement,
    search_name,
    write_statement,
)
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Dead, Defer, Done, Release, Retry
from kingdom.bus.port import EventCopy, Settlement, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.bus.stream import Topology
from kingdom.errors import Conflict, LeaseLost, Misconfigured, Transient

# From this many rows on, COPY into a staging table is faster than one JSON parameter.
COPY_FROM_ROWS = 1000
# From this many rows with fresh ids on, COPY into the table itself is faster, although it takes one more round trip.
COPY_FRESH_FROM_ROWS = 20
# From this many statements on, a pipeline saves more round trips than it costs in the event loop.
PIPELINE_FROM_STATEMENTS = 3
_T = TypeVar("_T", Delivery, Settlement)


class PostgresTransaction(Transaction):
    """One transaction. `opening` has the statements that begin it, and is empty inside a transaction of the caller.

    A single statement needs no opening if the session already has the right defaults (`may_skip_opening`).
    """

    def __init__(
        self,
        connection: AsyncConnection[Any],
        queries: Queries,
        topology: Topology,
        kinds: Mapping[str, RecordKind],
        opening: Sequence[LiteralString],
        *,
        may_skip_opening: bool,
    ) -> None:
        super().__init__(topology, kinds, ())
        self._connection = connection
        self._queries = queries
        self._opening = tuple(opening)
        self._joined = not opening
        self._may_skip_opening = may_skip_opening
        # The deliveries of an optimistic transaction, until their leases are locked.
        self._unchecked: tuple[Delivery, ...] = ()

    async def hold(self, deliveries: Sequence[Delivery], *, optimistic: bool = False) -> None:
        """Lock the leases of these deliveries, and set `held` to the deliveries that their leases still own.

        An `optimistic` transaction does so with its first read.
        """
        if optimistic:
            self.held = self._unchecked = tuple(deliveries)
            return
        rows: list[DictRow] = []
        for token, group in _by_token(deliveries).items():
            rows += await self._fetch("hold", {"token": token, "ids": [d.position for d in group]})
        self._note_held(deliveries, {row["id"]: row for row in rows})

    def _note_held(self, deliveries: Sequence[Delivery], rows: Mapping[int, DictRow]) -> None:
        """Set `held` from the rows of statements that have locked the leases, by the positions of the deliveries."""
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

    async def apply(self, *, commit: bool) -> None:
        """Write the collected changes in the fixed lock order: leases, records, keys, events, log."""
        with translate_errors():
            await self._apply(commit=commit)

    async def _apply(self, *, commit: bool) -> None:
        if commit and self._opening and self._may_skip_opening and await self._apply_at_once():
            return
        if any(delivery.position not in self.changes.settlements for delivery in self._unchecked):
            await self._check_leases()
        if self._joined and any(s.ordering_key for s in self.changes.settlements.values()):
            await self._require_read_committed()
        large = self._unordered() if len(self.changes.copies) >= COPY_FROM_ROWS else []
        if large:
            await self._publish_staged(large)
        statements = list(self._statements(staged=bool(large)))
        # These statements check the leases. A later check would not find the settled events.
        self._unchecked = ()
        if not statements and self._opening:
            return
        # Settlements, records and some publishes must be rolled back if their check fails.
        copies = self.changes.copies.values()
        may_roll_back = self.changes.puts or self.changes.settlements or any(map(may_need_cleanup, copies))
        if commit and not may_roll_back and len(statements) == 1 and self._opening and self._may_skip_opening:
            self._opening, commit = (), False  # a single statement is a transaction by itself
        async with self._connection.pipeline() if len(statements) >= PIPELINE_FROM_STATEMENTS else nullcontext():
            await self._open()
            sent = [(await self._execute(sql, parameters), check) for sql, parameters, check in statements]
        for cursor, check in sent:
            check(await cursor.fetchall() if cursor.description else [])
        await self._withdraw_known()
        await self._drop_idle_keys()
        await self._complete()
        if commit and (await self._execute("COMMIT")).statusmessage != "COMMIT":
            raise Transient("a statement of this transaction failed, so the database has rolled it back")

    async def _complete(self) -> None:
        """Write what comes after everything else."""

    async def _apply_at_once(self) -> bool:
        """Write the changes by one statement that commits by itself, if they are of a kind that allows it."""
        if self.changes.only_done:
            await self._finish_alone()
            return True
        if self.changes.settlements or self._unchecked:
            return False
        puts, copies = self.changes.puts.values(), self.changes.copies.values()
        if puts and all(is_ordered(copy) and not copy.envelope.event_id_given for copy in copies):
            return await self._write_alone()
        return (
            len(copies) >= COPY_FRESH_FROM_ROWS
            and not (puts or self.changes.entries)
            and all(map(is_plain, copies))
            and await self._copy_fresh(copies)
        )

    async def _write_alone(self) -> bool:
        """Write everything by one statement, and return whether this was possible.

        It is not if one of several records has another version, or if a copy is already there.
        """
        (put, *more), changes = self.changes.puts.values(), self.changes
        if more or changes.copies or changes.entries:
            sql, parameters, check = write_statement(self._queries, self._kinds, changes, alone=True)
        else:
            sql, parameters, check = put_statement(self._queries, self._kinds, put)
        try:
            check(await (await self._execute(sql, parameters)).fetchall())
        except DivisionByZero:
            return False
        return True

    async def _copy_fresh(self, copies: Iterable[EventCopy]) -> bool:
        """Publish copies by COPY, and return whether this was possible. It is not if a copy is already there."""
        lines = "".join(map(event_table_line, copies))
        try:
            # After a cancellation, the end of the COPY may fail. This error must not replace the cancellation.
            with keep_cancellation():
                async with self._connection.cursor().copy(self._queries["copy_fresh"]) as copying:
                    await copying.write(lines)
        except UniqueViolation:
            return False
        return True

    async def _finish_alone(self) -> None:
        """Archive the events of one lease by a statement that commits by itself. It finishes all of them or none."""
        (token,) = {settled.token for settled in self.changes.settlements.values()}
        sql, parameters, check = self._settle_many("done", token, list(self.changes.settlements), alone=True)
        try:
            rows = await (await self._execute(sql, parameters)).fetchall()
        except DivisionByZero:
            check(await self._fetch("hold", parameters))
            raise Conflict("the events of a lease changed while they were settled: settle them again") from None
        check(rows)

    async def _require_read_committed(self) -> None:
        """Refuse a caller's transaction that keeps an old snapshot. It could miss the next event of a key."""
        (row,) = await self._fetch("isolation", {})
        if row["transaction_isolation"] != "read committed":
            raise Misconfigured(
                f"events of an ordered stream cannot be settled in a {row['transaction_isolation']} transaction:"
                " join one that is READ COMMITTED"
            )

    async def _open(self) -> None:
        """Begin the transaction, unless it has begun already."""
        opening, self._opening = self._opening, ()
        for statement in opening:
            await self._execute(statement)

    def _statements(self, *, staged: bool) -> Iterable[Statement]:
        """Yield the statements that write the changes. `staged` means that unordered copies are already written."""
        settled = list(self.changes.settlements.values())
        held = set() if self._unchecked else {delivery.token for delivery in self.held}
        if tokens := {s.token for s in settled} - held:
            yield self._queries["fence"], {"tokens": list(tokens)}, _accept_any
        puts, entries = list(self.changes.puts.values()), self.changes.entries
        ordered, locks = ordered_copies(self.changes), keys_to_lock(self.changes)
        # Together these cost one round trip. A statement of its own is cheaper if it is the only one.
        together = len(puts) + bool(ordered or locks["lock_keys"]) + bool(entries) > 1
        if together:
            yield write_statement(self._queries, self._kinds, self.changes, alone=False)
        elif puts:
            yield put_statement(self._queries, self._kinds, puts[0])
        elif ordered:
            in_keys = {"rows": rows_of_copies(ordered), **locks, "alone": False}
            yield self._queries["publish_ordered"], in_keys, self._collect_duplicates(ordered)
        elif locks["lock_keys"]:
            yield self._queries["lock_keys"], locks, _accept_any
        if not staged:
            yield from self._publish_unordered()
        if carried := [copy for copy in self.changes.copies.values() if is_carried(copy)]:
            yield self._queries["carry"], {"rows": carried_rows(carried)}, self._collect_duplicates(carried)
        for token, group in _by_token(settled).items():
            yield from self._settle_statements(token, group)
        if entries and not together:
            yield self._queries["append"], {"entries": entry_rows(entries)}, _accept_any

    def _publish_unordered(self) -> Iterable[Statement]:
        copies = self._unordered()
        if len(copies) == 1:
            yield self._queries["publish_one"], event_parameters(copies[0]), self._collect_missing(copies)
        elif copies:
            counted = {"rows": rows_of_copies(copies), "count": len(copies)}
            yield self._queries["publish"], counted, self._collect_duplicates(copies)

    def _settle_statements(self, token: int, group: list[Settlement]) -> Iterable[Statement]:
        released = [s for s in group if isinstance(s.outcome, Release)]
        done = [s for s in group if isinstance(s.outcome, Done)]
        for name, part in (
            ("release", released),
            ("done", [s for s in done if not s.ordering_key]),
            ("done_ordered", [s for s in done if s.ordering_key]),
        ):
            if part:
                yield self._settle_many(name, token, [s.position for s in part])
        for settled in group:
            if not isinstance(settled.outcome, Done | Release):
                yield self._settle_one(settled)

    def _settle_many(self, name: str, token: int, positions: list[int], *, alone: bool = False) -> Statement:
        def check(rows: list[DictRow]) -> None:
            if lost := set(positions) - {row["id"] for row in rows}:
                raise LeaseLost(lost)

        return self._queries[name], {"token": token, "ids": positions, "alone": alone}, check

    def _settle_one(self, settled: Settlement) -> Statement:
        parameters: dict[str, Any] = {"token": settled.token, "id": settled.position}
        match settled.outcome:
            case Retry(after, code, message):
                name = "reschedule"
                parameters |= {"undo": 0, "until": None, "after": after, "code": code, "message": message}
            case Defer(until, reason, after):
                name = "reschedule"
                parameters |= {"undo": 1, "until": until, "after": after, "code": "deferred", "message": reason}
            case Dead(message, code):
                name = "dead_ordered" if settled.ordering_key else "dead"
                parameters |= {"code": code, "message": message}
                if settled.ordering_key:
                    parameters["skip"] = settled.stream.on_dead == "skip"
            case _:
                raise AssertionError(settled.outcome)

        def check(rows: list[DictRow]) -> None:
            if not rows:
                raise LeaseLost([settled.position])

        return self._queries[name], parameters, check

    def _unordered(self) -> list[EventCopy]:
        return [c for c in self.changes.copies.values() if not (is_ordered(c) or is_carried(c))]

    def _collect_missing(self, copies: Sequence[EventCopy]) -> Check:
        return lambda rows: self.changes.duplicates.extend(copies[len(rows) :])

    def _collect_duplicates(self, copies: Sequence[EventCopy]) -> Check:
        return lambda rows: self.changes.duplicates.extend(copies[row["n"]] for row in rows)

    async def _withdraw_known(self) -> None:
        """Delete the new copies of events that have already ended in their stream, if the publisher chose their ids."""
        refused = {id(copy) for copy in self.changes.duplicates}
        stored = [c for c in self.changes.copies.values() if not is_carried(c)]
        copies = [c for c in stored if c.envelope.event_id_given and id(c) not in refused]
        if not copies:
            return
        ids = [{"n": n, "event_id": c.envelope.event_id, "stream": c.stream.name} for n, c in enumerate(copies)]
        withdrawn = await self._fetch("withdraw_known", {"rows": to_json(ids)})
        self._collect_duplicates(copies)(withdrawn)
        heads = [copies[row["n"]] for row in withdrawn if row["was_head"]]
        if heads:
            streams, keys = [c.stream.name for c in heads], [c.envelope.partition_key for c in heads]
            await self._execute(self._queries["promote_fronts"], {"streams": streams, "keys": keys})

    async def _drop_idle_keys(self) -> None:
        """Delete the key rows that a publish of duplicates has created."""
        pairs = {(c.stream.name, c.envelope.partition_key) for c in self.changes.duplicates if is_ordered(c)}
        if pairs:
            streams, keys = zip(*sorted(pairs), strict=True)
            await self._execute(self._queries["drop_idle_keys"], {"streams": list(streams), "keys": list(keys)})

    async def _publish_staged(self, copies: Sequence[EventCopy]) -> None:
        await self._open()
        await self._execute(self._queries["stage"])
        async with self._connection.cursor(row_factory=dict_row) as cursor:
            # After a cancellation, the end of the COPY may fail. This error must not replace the cancellation.
            with keep_cancellation():
                async with cursor.copy(self._queries["copy_stage"]) as copying:
                    for number, copy in enumerate(copies):
                        await copying.write_row(staging_table_row(number, copy))
            await cursor.execute(self._queries["publish_stage"])
            self._collect_duplicates(copies)(await cursor.fetchall())

    async def _read(self, kind: str, record_id: str) -> Record | None:
        rows = await self._fetch("get_record", {"kind": kind, "id": record_id})
        return read_record(rows[0], self._kinds) if rows else None

    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        parameters: dict[str, Any] = {"kinds": [kind for kind, _ in keys], "record_ids": [each for _, each in keys]}
        if len({delivery.token for delivery in self._unchecked}) != 1:
            return [read_record(row, self._kinds) for row in await self._fetch("get_records", parameters)]
        deliveries, self._unchecked = self._unchecked, ()
        parameters |= {"token": deliveries[0].token, "ids": [delivery.position for delivery in deliveries]}
        rows = await self._fetch("hold_and_read", parameters)
        self._note_held(deliveries, {row["position"]: row for row in rows if row["kind"] is None})
        self._require_all(deliveries)
        return [read_record(without_event(row), self._kinds) for row in rows if row["kind"] is not None]

    async def _search(self, query: RecordQuery) -> list[Record]:
        number = self._kinds[query.kind].index_number(query.index) if query.index is not None else 0
        parameters = {
            "kind": query.kind,
            "state": query.state,
            "number": number,
            "value": query.value,
            "due_by": query.due_by,
            # Every id is between the two defaults.
            "after": query.after if query.after is not None else "\U0010ffff" if query.descending else "",
            "limit": query.limit,
        }
        rows = await self._fetch(search_name(query, number), parameters)
        return [read_record(row, self._kinds) for row in rows]

    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        return bool(await self._fetch("once", {"scope": scope, "key": key, "keep": keep}))

    async def _fetch(self, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        if self._unchecked:
            await self._check_leases()
        with translate_errors():
            await self._open()
            return await (await self._execute(self._queries[name], parameters)).fetchall()

    async def _execute(self, sql: LiteralString, parameters: Mapping[str, Any] | None = None) -> AsyncCursor[DictRow]:
        return await self._connection.cursor(row_factory=dict_row).execute(sql, parameters)


def _by_token(items: Sequence[_T]) -> dict[int, list[_T]]:
    groups: dict[int, list[_T]] = defaultdict(list)
    for item in items:
        groups[item.token].append(item)
    return dict(sorted(groups.items()))


def _accept_any(_rows: list[DictRow]) -> None:
    """Accept all rows that a statement can return."""
