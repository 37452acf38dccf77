"""The logic of Transaction, on a dictionary as the store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.bus import (
    Dead,
    Defer,
    Delivery,
    Done,
    Envelope,
    LogEntry,
    Record,
    RecordKind,
    RecordQuery,
    Retry,
    RetryPolicy,
    Stream,
    Topology,
    Transaction,
)
from kingdom.bus.outcome import AnyOutcome, Release
from kingdom.errors import Conflict, Misconfigured
from tests.unit.bus.deliveries import delivery, run_of

POLICY = RetryPolicy(base=timedelta(seconds=4), jitter=0)
TOPOLOGY = Topology(
    [
        Stream(name="jobs", subscribes=frozenset({"Job"}), retry=POLICY),
        Stream(name="audit", subscribes=frozenset({"Job"})),
        Stream(name="host.{name}"),
    ]
)
KIND = RecordKind(name="order", directories={"open": "orders/open", "paid": "orders/paid"}, indexes=("owner", "shop"))
KEEP = timedelta(days=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class DictTransaction(Transaction):
    """Reads from a dictionary, writes nothing."""

    def __init__(self, *records: Record, held: Sequence[Delivery] = ()) -> None:
        super().__init__(TOPOLOGY, {KIND.name: KIND}, held)
        self.stored = {(record.kind, record.id): record for record in records}
        self.keys: set[tuple[str, str]] = set()

    async def _read(self, kind: str, record_id: str) -> Record | None:
        return self.stored.get((kind, record_id))

    async def _read_many(self, keys: Sequence[tuple[str, str]]) -> list[Record]:
        return [self.stored[key] for key in keys if key in self.stored]

    async def _search(self, query: RecordQuery) -> list[Record]:
        found = [record for record in self.stored.values() if query.matches(record)]
        by_due = query.due_by is not None
        found.sort(
            key=lambda record: (record.due_at or NOON, record.id) if by_due else (record.id,), reverse=query.descending
        )
        return found[: query.limit]

    async def _take_key(self, scope: str, key: str, keep: timedelta) -> bool:
        assert keep == KEEP
        fresh = (scope, key) not in self.keys
        self.keys.add((scope, key))
        return fresh

    def outcomes(self) -> dict[int, AnyOutcome]:
        return {position: settled.outcome for position, settled in self.changes.settlements.items()}


def order(record_id: str, state: str = "open", version: int = 1, **fields: Any) -> Record:
    return Record(kind="order", id=record_id, state=state, version=version).replace(**fields)


async def test_publishing_copies_an_envelope_to_each_of_its_streams() -> None:
    transaction = DictTransaction()
    envelope = Envelope(type="Job")
    await transaction.publish(envelope, at=NOON)
    copies = list(transaction.changes.copies.values())
    assert [(copy.stream.name, copy.envelope, copy.at) for copy in copies] == [
        ("jobs", envelope, NOON),
        ("audit", envelope, NOON),
    ]


async def test_an_envelope_without_subscribers_is_not_copied_and_an_unknown_stream_is_refused() -> None:
    transaction = DictTransaction()
    await transaction.publish(Envelope(type="Unheard"))
    assert transaction.changes.copies == {}
    with pytest.raises(Misconfigured):
        await transaction.publish(Envelope(type="Job", stream="unheard"))


async def test_publishing_an_event_twice_reports_the_second_as_a_duplicate() -> None:
    transaction = DictTransaction()
    envelope = Envelope(type="Job", stream="host.a")
    await transaction.publish(envelope, envelope)
    assert len(transaction.changes.copies) == 1
    assert [copy.envelope for copy in transaction.duplicates] == [envelope]


async def test_reads_see_what_the_block_has_put() -> None:
    transaction = DictTransaction(order("1"))
    read = await transaction.get("order", "1")
    assert read is not None
    stored = await transaction.put(read.replace(state="paid"))
    assert stored.version == 2
    assert await transaction.get("order", "1") == stored
    assert await transaction.get("order", "2") is None


async def test_a_record_put_twice_is_written_once_over_the_version_that_was_read() -> None:
    transaction = DictTransaction(order("1", version=7))
    read = await transaction.get("order", "1")
    assert read is not None
    once = await transaction.put(read)
    twice = await transaction.put(once.replace(state="paid"))
    (put,) = transaction.changes.puts.values()
    assert (put.expected, put.record, twice.version) == (7, twice, 8)


async def test_a_second_put_from_the_version_before_the_first_is_a_conflict() -> None:
    transaction = DictTransaction(order("1"))
    await transaction.put(order("1"))
    with pytest.raises(Conflict, match="put twice"):
        await transaction.put(order("1"))


@pytest.mark.parametrize("record", [Record(kind="ghost", id="1", state="open"), order("1", state="lost")])
async def test_an_undeclared_kind_or_state_is_refused(record: Record) -> None:
    transaction = DictTransaction()
    with pytest.raises(Misconfigured):
        await transaction.put(record)
    assert transaction.changes.puts == {}


records = st.builds(
    order,
    st.sampled_from("abcdefgh"),
    st.sampled_from(["open", "paid"]),
    indexed=st.sampled_from([{}, {"owner": "me"}, {"owner": "you"}, {"shop": "me"}, {"owner": "me", "shop": "you"}]),
    due_at=st.none() | st.integers(0, 3).map(lambda hours: NOON + timedelta(hours=hours)),
)
common = {
    "kind": st.just("order"),
    "state": st.sampled_from([None, "open", "paid"]),
    "limit": st.integers(1, 5),
}
due = st.integers(0, 3).map(lambda hours: NOON + timedelta(hours=hours))
by_page = st.builds(RecordQuery, after=st.none() | st.sampled_from("abc"), descending=st.booleans(), **common)
by_index = st.sampled_from([{}, {"index": "owner", "value": "me"}, {"index": "shop", "value": "me"}])
queries = st.builds(
    lambda query, index: replace(query, **index), by_page | st.builds(RecordQuery, due_by=due, **common), by_index
)


def by_id(found: list[Record]) -> list[Record]:
    return list({record.id: record for record in found}.values())


@given(st.lists(records, max_size=8).map(by_id), st.lists(records, max_size=8).map(by_id), queries)
def test_find_answers_as_if_the_puts_were_stored_already(
    stored: list[Record], puts: list[Record], query: RecordQuery
) -> None:
    async def search() -> tuple[list[Record], list[Record]]:
        transaction = DictTransaction(*stored)
        written = []
        for record in puts:
            known = await transaction.get("order", record.id)
            written.append(await transaction.put(record.replace(version=known.version if known else 0)))
        after = DictTransaction(*stored, *written)
        return await transaction.find(query), await after.find(query)

    found, expected = asyncio.run(search())
    assert found == expected


async def test_a_dedup_key_is_taken_once() -> None:
    transaction = DictTransaction()
    assert await transaction.once("mail", "1", KEEP)
    assert not await transaction.once("mail", "1", KEEP)
    assert await transaction.once("sms", "1", KEEP)
    assert transaction.dedup_keys_taken == 2


async def test_a_retry_gets_its_wait_from_the_policy_of_its_stream() -> None:
    transaction = DictTransaction()
    await transaction.settle(delivery(position=1, attempt=3), Retry(code="busy", message="later"))
    await transaction.settle(delivery(position=2, attempt=3), Retry(timedelta(minutes=9)))
    assert transaction.outcomes() == {
        1: Retry(timedelta(seconds=16), "busy", "later"),
        2: Retry(timedelta(minutes=9)),
    }


@pytest.mark.parametrize("message", ["it broke", ""])
async def test_a_retry_at_the_last_attempt_becomes_dead_with_the_same_code(message: str) -> None:
    transaction = DictTransaction()
    await transaction.settle(delivery(attempt=10, max_attempts=10), Retry(code="busy", message=message))
    assert transaction.outcomes() == {1: Dead(message or "every attempt failed", "busy")}


@pytest.mark.parametrize(
    "outcome", [Retry(timedelta(1), "c\x00", "a\x00b"), Dead("a\x00b", "c\x00"), Defer(NOON, "a\x00b")]
)
async def test_characters_that_cannot_be_stored_are_replaced_in_an_outcome(outcome: AnyOutcome) -> None:
    transaction = DictTransaction()
    await transaction.settle(delivery(), outcome)
    (settled,) = transaction.outcomes().values()
    assert type(settled) is type(outcome)
    assert "\\x00" not in repr(settled)


async def test_a_long_text_of_an_outcome_is_shortened() -> None:
    transaction = DictTransaction()
    await transaction.settle(delivery(), Dead("\ud800" + "x" * 100_000))
    (settled,) = transaction.outcomes().values()
    assert isinstance(settled, Dead)
    assert 1000 < len(settled.message.encode()) < 10_000


def test_a_query_by_due_time_cannot_be_paged_by_id() -> None:
    with pytest.raises(Misconfigured):
        RecordQuery(kind="order", due_by=NOON, after="a")


async def test_a_defer_at_the_last_attempt_is_still_a_defer() -> None:
    transaction = DictTransaction()
    await transaction.settle(delivery(attempt=10, max_attempts=10), Defer(NOON, "closed"))
    assert transaction.outcomes() == {1: Defer(NOON, "closed")}


@pytest.mark.parametrize("outcome", [Retry(timedelta(1)), Defer(NOON, "closed"), Dead("no"), Release()])
async def test_an_outcome_that_stops_a_run_releases_the_rest_of_it(outcome: AnyOutcome) -> None:
    transaction = DictTransaction()
    first, second, _, _ = run_of("k", 3, 5, 8, 9)
    await transaction.settle(first, Done())
    await transaction.settle(second, outcome)
    assert transaction.outcomes() == {3: Done(), 5: outcome, 8: Release(), 9: Release()}
    assert {settled.ordering_key for settled in transaction.changes.settlements.values()} == {("jobs", "k")}


async def test_a_done_event_does_not_settle_the_rest_of_its_run() -> None:
    transaction = DictTransaction()
    await transaction.settle(run_of("k", 3, 5)[0], Done())
    assert transaction.outcomes() == {3: Done()}


actions = st.lists(
    st.tuples(st.sampled_from(["put", "publish", "repeat", "append", "settle"]), st.integers(0, 5)), max_size=12
)
SAMPLES = [Envelope(type="Job", stream="jobs") for _ in range(6)]


async def act(transaction: Transaction, what: str, number: int) -> None:
    match what:
        case "put":
            known = await transaction.get("order", str(number))
            await transaction.put(known or order(str(number), version=0))
        case "publish":
            await transaction.publish(SAMPLES[number])
        case "repeat":
            await transaction.publish(SAMPLES[number], SAMPLES[number])
        case "append":
            await transaction.append(LogEntry(type=str(number), actor="test", at=NOON, trace_id="t"))
        case "settle":
            await transaction.settle(delivery(position=100 + len(transaction.changes.settlements)), Done())


@given(actions, actions)
def test_rolling_back_to_a_savepoint_removes_exactly_the_later_changes(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    async def go() -> tuple[Transaction, Transaction]:
        plain, returned = DictTransaction(order("0"), order("1")), DictTransaction(order("0"), order("1"))
        for what, number in before:
            await act(plain, what, number)
            await act(returned, what, number)
        savepoint = returned.changes.savepoint()
        for what, number in after:
            await act(returned, what, number)
        returned.changes.roll_back_to(savepoint)
        return plain, returned

    plain, returned = asyncio.run(go())
    assert returned.changes == plain.changes
    assert list(returned.changes.copies) == list(plain.changes.copies)
