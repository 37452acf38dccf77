"""The statements for records and ordered streams, with the checks of what they return. No I/O."""

from collections.abc import Callable, Mapping
from typing import Any, LiteralString

from psycopg.rows import DictRow

from kingdom.backends.postgres.rows import entry_rows, is_ordered, record_parameters, rows_of_copies, to_json
from kingdom.bus.outcome import Dead, Done
from kingdom.bus.port import EventCopy, Put, TransactionChanges
from kingdom.bus.record import RecordKind, RecordQuery
from kingdom.errors import Conflict

Queries = Mapping[str, LiteralString]
# A function that checks the rows that a statement has returned.
Check = Callable[[list[DictRow]], None]
Statement = tuple[LiteralString, Mapping[str, Any], Check]


def put_statement(queries: Queries, kinds: Mapping[str, RecordKind], put: Put) -> Statement:
    """Return the statement that stores one record and does nothing else."""
    parameters = record_parameters(put, kinds[put.record.kind])
    parameters["doc"] = to_json(parameters["doc"])

    def check(rows: list[DictRow]) -> None:
        if not rows:
            raise _conflict(put)

    return queries["update_record" if put.expected else "insert_record"], parameters, check


def write_statement(
    queries: Queries, kinds: Mapping[str, RecordKind], changes: TransactionChanges, *, alone: bool
) -> Statement:
    """Return the statement that stores all records, publishes to ordered streams and appends to the log.

    If `alone`, the statement commits by itself. It then fails if there is a conflict or a duplicate.
    """
    puts, copies = list(changes.puts.values()), ordered_copies(changes)
    parameters = {
        "records": to_json([{"n": n, **record_parameters(put, kinds[put.record.kind])} for n, put in enumerate(puts)]),
        "rows": rows_of_copies(copies),
        **keys_to_lock(changes),
        "entries": entry_rows(changes.entries),
        "alone": alone,
    }

    def check(rows: list[DictRow]) -> None:
        (refused,) = rows
        if refused["records"]:
            raise _conflict(puts[refused["records"][0]])
        changes.duplicates.extend(copies[number] for number in refused["copies"])

    return queries["write"], parameters, check


def ordered_copies(changes: TransactionChanges) -> list[EventCopy]:
    """Return the published copies that must stay in order with the other events of their key."""
    return [copy for copy in changes.copies.values() if is_ordered(copy)]


def keys_to_lock(changes: TransactionChanges) -> dict[str, list[str]]:
    """Return the keys of the ordered events that end, as parameters."""
    ending = [each for each in changes.settlements.values() if isinstance(each.outcome, Done | Dead)]
    keys = sorted({each.ordering_key for each in ending if each.ordering_key})
    return {"lock_streams": [stream for stream, _ in keys], "lock_keys": [key for _, key in keys]}


def search_name(query: RecordQuery, index_number: int) -> str:
    """Return the name of the statement that finds records."""
    if query.due_by is not None:
        return "find_due"
    by = "state" if query.state is not None else f"index_{index_number}" if index_number else "kind"
    return f"find_by_{by}_descending" if query.descending else f"find_by_{by}"


def _conflict(put: Put) -> Conflict:
    record = put.record
    return Conflict(f"{record.kind} {record.id} is no longer at version {put.expected}: read it again")
