"""The statements that store records, write to ordered streams and settle events, with their checks. No I/O.

If a statement is written `alone`, its transaction commits without looking at what it has returned. The statement then
fails by a division by zero if the check would fail.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, LiteralString, TypeVar

from psycopg.rows import DictRow

from kingdom.backends.postgres.rows import (
    copies_parameters,
    entry_rows,
    event_parameters,
    is_ordered,
    is_plain,
    record_parameters,
    rows_of_puts,
    to_json,
)
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Dead, Defer, Done, Retry
from kingdom.bus.port import EventCopy, Put, Settlement, TransactionChanges
from kingdom.bus.record import RecordKind
from kingdom.errors import Conflict, LeaseLost

Queries = Mapping[str, LiteralString]
# A function that checks the rows that a statement has returned.
Check = Callable[[list[DictRow]], None]
# A statement, its parameters, and its check if it needs one.
Statement = tuple[LiteralString, Mapping[str, Any], Check | None]
_T = TypeVar("_T", Delivery, Settlement)
# How many copies one statement inserts into unordered streams: the server limits the size of a JSON document.
COPIES_PER_STATEMENT = 500


def single_publish_statement(copies: Sequence[EventCopy]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the name and the parameters of the statement that publishes all copies, if one is enough."""
    if any(copy.envelope.event_id_given for copy in copies):
        return None
    if len(copies) == 1 and is_plain(copies[0]):
        return "publish_one_fresh", event_parameters(copies[0])
    if 0 < len(copies) <= COPIES_PER_STATEMENT and all(map(is_plain, copies)):
        return "publish_fresh", copies_parameters(copies)
    if copies and all(map(is_ordered, copies)):
        return "publish_ordered", {**copies_parameters(copies), "lock_streams": [], "lock_keys": [], "alone": True}
    return None


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
    """Return the statement that stores all records, publishes to ordered streams and appends to the log."""
    puts, copies = list(changes.puts.values()), ordered_copies(changes)
    parameters = {
        "records": rows_of_puts(puts, kinds),
        **copies_parameters(copies),
        **keys_to_lock(changes),
        "entries": entry_rows(changes.entries),
        "alone": alone,
    }

    def check(rows: list[DictRow]) -> None:
        (refused,) = rows
        if refused["records"]:
            raise _conflict(puts[refused["records"][0]])
        changes.duplicates.extend(copies[number] for number in refused["copies"])

    return queries["write"], parameters, None if alone else check


def insert_statements(queries: Queries, kinds: Mapping[str, RecordKind], puts: Sequence[Put]) -> Iterable[Statement]:
    """Yield the statement that stores new records if there are any. It fails if one of them exists."""
    if puts:
        yield queries["insert_records"], {"records": rows_of_puts(puts, kinds)}, None


def settle_statement(
    queries: Queries, name: str, token: int, positions: Sequence[int], *, alone: bool = False
) -> Statement:
    """Return the statement that settles events of one lease as done, or releases them."""

    def check(rows: list[DictRow]) -> None:
        if lost := set(positions).difference(rows[0]["ids"]):
            raise LeaseLost(lost)

    return queries[name], {"token": token, "ids": positions, "alone": alone}, None if alone else check


def outcome_statement(queries: Queries, settled: Settlement) -> Statement:
    """Return the statement that ends one event as DEAD, or requeues it."""
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

    return queries[name], parameters, check


def ordered_copies(changes: TransactionChanges) -> list[EventCopy]:
    """Return the published copies that must stay in order with the other events of their key."""
    return [copy for copy in changes.copies.values() if is_ordered(copy)]


def keys_to_lock(changes: TransactionChanges) -> dict[str, list[str]]:
    """Return the keys of the ordered events that end, as parameters."""
    settled = changes.settlements.values()
    keys = sorted(
        {each.ordering_key for each in settled if each.ordering_key and isinstance(each.outcome, Done | Dead)}
    )
    return {"lock_streams": [stream for stream, _ in keys], "lock_keys": [key for _, key in keys]}


def by_token(items: Sequence[_T]) -> dict[int, list[_T]]:
    """Group deliveries or settlements by their lease, in the order in which leases are locked."""
    groups: dict[int, list[_T]] = defaultdict(list)
    for item in items:
        groups[item.token].append(item)
    return dict(sorted(groups.items()))


def _conflict(put: Put) -> Conflict:
    record = put.record
    return Conflict(f"{record.kind} {record.id} is no longer at version {put.expected}: read it again")
