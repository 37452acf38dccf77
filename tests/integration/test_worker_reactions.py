"""Reactions of a real worker: grouped in one transaction, and run again one by one if the group fails."""

import asyncio
import math
from contextlib import suppress
from datetime import timedelta

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import (
    Dead,
    Delivery,
    Dispatcher,
    Done,
    Envelope,
    Event,
    LogEntry,
    Outcome,
    Record,
    Retry,
    RetryPolicy,
    Stream,
    Topology,
    Transaction,
)
from kingdom.bus.outcome import Release
from kingdom.bus.worker.worker import GROUP_SIZE
from kingdom.errors import Conflict, LeaseLost, Permanent
from tests.integration.running import (
    HOUR,
    LATE_RETRY,
    MARKS,
    Limits,
    at_work,
    event,
    eventually,
    numbered,
    open_bus,
    rows,
    statuses,
    stream,
    until_all,
)

GROUP = GROUP_SIZE
KEEP = timedelta(days=1)


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limit of a group, so that it commits only after all its reactions, even on a slow machine."""
    monkeypatch.setattr("kingdom.bus.worker.execution.GROUP_SECONDS", 3600.0)


def note(what: str, subject: int = 0) -> LogEntry:
    return LogEntry(type=what, actor="test", data={"n": subject})


async def leave_traces(received: Event[dict[str, int]], transaction: Transaction, *, dedup: bool) -> None:
    n = received.payload["n"]
    if dedup:
        assert await transaction.once("test", str(n), KEEP)
    await transaction.put(Record(kind="mark", id=str(n), state="made"))
    await transaction.publish(Envelope(type="Follow", payload={"n": n}))
    await transaction.append(note("handled", n))


async def test_reactions_of_one_claim_share_a_lease_and_a_transaction(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await transaction.append(note("handled", received.payload["n"]))

    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", GROUP))
        async with at_work(bus, dispatcher, concurrency=GROUP):
            await until_all(bus, "DONE", GROUP)
        tokens = await rows(bus, "SELECT DISTINCT lease_token FROM kingdom.outbox_archive")
        groups = await rows(bus, "SELECT count(*) AS n FROM kingdom.log GROUP BY xid")
    assert len(tokens) == 1
    assert [row["n"] for row in groups] == [GROUP]


@pytest.mark.parametrize("dedup", [False, True], ids=["collected writes", "with a dedup key"])
async def test_a_failing_reaction_leaves_no_trace_and_its_neighbors_commit(dsn: str, *, dedup: bool) -> None:
    dispatcher, failing = Dispatcher(), 5

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await leave_traces(received, transaction, dedup=dedup)
        if received.payload["n"] == failing:
            raise ValueError("this one always fails")

    async with open_bus(dsn, stream("jobs", "Job", retry=LATE_RETRY), stream("next", "Follow")) as bus:
        await bus.publish(*numbered("Job", GROUP))
        async with at_work(bus, dispatcher, "jobs", concurrency=GROUP):
            await eventually(lambda: _ended(bus, GROUP))
        done = sorted(set(range(GROUP)) - {failing})
        logged = await rows(bus, "SELECT (data->>'n')::int AS n, xid FROM kingdom.log ORDER BY n")
        marks = await rows(bus, "SELECT id::int AS n FROM kingdom.record ORDER BY n")
        follows = await rows(bus, "SELECT (payload_json->>'n')::int AS n FROM kingdom.outbox_all WHERE stream = 'next'")
        keys = await rows(bus, "SELECT key::int AS n FROM kingdom.once_key ORDER BY n")
        failed = await rows(bus, "SELECT * FROM kingdom.outbox_all WHERE stream = 'jobs' AND status <> 'DONE'")
    for traces in (logged, marks, sorted(follows, key=lambda row: row["n"]), *([keys] if dedup else [])):
        assert [row["n"] for row in traces] == done
    # Only a rollback returns a taken key, so the events of that group run one by one.
    assert len({row["xid"] for row in logged}) == (len(done) if dedup else 1)
    assert [(row["payload_json"], row["status"], row["attempt_count"]) for row in failed] == [
        ({"n": failing}, "PENDING", 1)
    ]
    assert failed[0]["last_error_message"] == "ValueError: this one always fails"


async def test_a_group_that_cannot_commit_is_rerun_as_two_halves(dsn: str) -> None:
    dispatcher, runs = Dispatcher(), list[int]()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        n = received.payload["n"]
        runs.append(n)
        await transaction.append(note("handled", n))
        if n == 3 and runs.count(n) == 1:
            # This version was never stored, so the conflict appears only when the group commits.
            await transaction.put(Record(kind="mark", id="stale", state="made", version=7))

    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 8))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 8)
        logged = await rows(bus, "SELECT (data->>'n')::int AS n, xid FROM kingdom.log ORDER BY seq")
        attempts = await rows(bus, "SELECT DISTINCT attempt_count AS n FROM kingdom.outbox_archive")
    assert sorted(runs) == sorted([*range(8), *range(8)])
    assert [row["n"] for row in logged] == list(range(8))
    assert len({row["xid"] for row in logged}) == 2
    assert [row["n"] for row in attempts] == [1]


async def test_a_group_that_takes_too_long_commits_the_reactions_that_are_done(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kingdom.bus.worker.execution.GROUP_SECONDS", 0.0)
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        await transaction.append(note("handled", received.payload["n"]))

    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 5))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 5)
        logged = await rows(bus, "SELECT (data->>'n')::int AS n, xid FROM kingdom.log ORDER BY seq")
    assert [row["n"] for row in logged] == list(range(5))
    assert len({row["xid"] for row in logged}) == 5


async def test_an_optimistic_transaction_writes_nothing_for_a_delivery_that_is_no_longer_leased(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 1))
        (delivery,) = await bus.claim("jobs", 1, "test")
        async with bus.transaction() as transaction:
            await transaction.settle(delivery, Done())
        with pytest.raises(LeaseLost):
            async with bus.transaction(hold=[delivery], optimistic=True) as transaction:
                await transaction.put(Record(kind="mark", id="late", state="made"))
        with suppress(LeaseLost):
            async with bus.transaction(hold=[delivery], optimistic=True) as transaction:
                await transaction.read_ahead([("mark", "late")])
                pytest.fail("the lease was not checked before the first read returned")
        assert await rows(bus, "SELECT id FROM kingdom.record") == []


async def test_a_lease_that_a_reaction_has_read_under_is_not_reaped_until_it_ends(dsn: str) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 1))
        (delivery,) = await bus.claim("jobs", 1, "test")
        async with bus.transaction(hold=[delivery], optimistic=True) as transaction:
            await transaction.read_ahead([("mark", "any")])
            await _expire_leases(bus)
            assert await bus.reap() == 0
            await transaction.settle(delivery, Done())
        assert await statuses(bus) == {"DONE": 1}


@pytest.mark.parametrize("lost_by", ["release", "reap"])
async def test_an_optimistic_transaction_cannot_read_under_an_earlier_claim_of_its_event(
    dsn: str, lost_by: str
) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus:
        await bus.publish(*numbered("Job", 1))
        (earlier,) = await bus.claim("jobs", 1, "test")
        if lost_by == "release":
            async with bus.transaction() as transaction:
                await transaction.settle(earlier, Release())
        else:
            await _expire_leases(bus)
            assert await bus.reap() == 1
            assert len(await bus.claim("jobs", 1, "test")) == 1
        with suppress(LeaseLost):
            async with bus.transaction(hold=[earlier], optimistic=True) as transaction:
                await transaction.read_ahead([("mark", "any")])
                pytest.fail("an earlier claim still counts")


async def _expire_leases(bus: PostgresBus) -> None:
    await rows(bus, "UPDATE kingdom.outbox_lease SET expires_at = now() - interval '1 s'")


async def test_the_lease_of_an_ordered_event_is_confirmed_before_its_reaction_runs(dsn: str) -> None:
    dispatcher, runs = Dispatcher(), list[int]()

    @dispatcher.reaction("Job", reads="mark")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        runs.append(received.payload["n"])

    class Late(PostgresBus):
        """Loses the first lease directly after its claim."""

        async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
            claimed = await super().claim(stream, limit, worker)
            if claimed and claimed[0].attempt == 1:
                await _expire_leases(self)
                assert await self.reap() == len(claimed)
            return claimed

    ordered = Stream(name="jobs", ordered=True, subscribes=frozenset({"Job"}))
    async with Late(dsn, Topology([ordered]), [MARKS]) as bus:
        await bus.publish(Envelope(type="Job", payload={"n": 1}, partition_key="k", aggregate_id="m"))
        async with at_work(bus, dispatcher):
            await until_all(bus, "DONE", 1)
    assert runs == [1]


async def test_an_event_that_cannot_be_stored_causes_only_a_few_more_transactions_for_its_group(dsn: str) -> None:
    dispatcher, runs = Dispatcher(), list[int]()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        runs.append(received.payload["n"])
        await transaction.append(note("handled", received.payload["n"]))
        if received.payload["n"] == GROUP // 3:
            await transaction.put(Record(kind="mark", id="stale", state="made", version=7))

    async with open_bus(dsn, stream("jobs", "Job", retry=LATE_RETRY)) as bus:
        await bus.publish(*numbered("Job", GROUP))
        async with at_work(bus, dispatcher, concurrency=GROUP):
            await eventually(lambda: _ended(bus, GROUP))
        logged = await rows(bus, "SELECT (data->>'n')::int AS n, xid FROM kingdom.log ORDER BY seq")
    assert sorted(row["n"] for row in logged) == sorted(set(range(GROUP)) - {GROUP // 3})
    assert len({row["xid"] for row in logged}) <= 2 * math.log2(GROUP)
    assert len(runs) <= 4 * GROUP


async def test_a_conflict_with_another_writer_is_rerun_on_fresh_data_without_an_attempt(dsn: str) -> None:
    dispatcher, read, changed, runs = Dispatcher(), asyncio.Event(), asyncio.Event(), list[int]()

    @dispatcher.reaction("Add")
    async def handle(_received: Event[dict[str, int]], transaction: Transaction) -> None:
        record = await transaction.get("mark", "sum")
        assert record is not None
        runs.append(record.doc["sum"])
        read.set()
        await changed.wait()
        await transaction.put(_with_sum(record, record.doc["sum"] + 1))

    async with open_bus(dsn, stream("jobs", "Add")) as bus:
        async with bus.transaction() as transaction:
            await transaction.put(Record(kind="mark", id="sum", state="open", doc={"sum": 0}))
        envelope = Envelope(type="Add")
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await read.wait()
            async with bus.transaction() as transaction:
                record = await transaction.get("mark", "sum")
                assert record is not None
                await transaction.put(_with_sum(record, 10))
            changed.set()
            await until_all(bus, "DONE", 1)
        stored = await rows(bus, "SELECT doc FROM kingdom.record")
        assert (await event(bus, envelope))["attempt_count"] == 1
    assert runs == [0, 10]
    assert stored == [{"doc": {"sum": 11}}]


async def test_a_reaction_that_always_conflicts_uses_up_its_attempts(dsn: str) -> None:
    dispatcher, runs = Dispatcher(), list[int]()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        runs.append(received.attempt)
        raise Conflict("never the right version")

    policy = RetryPolicy(base=timedelta(milliseconds=5), max_attempts=2)
    async with open_bus(dsn, stream("jobs", "Job", retry=policy)) as bus:
        envelope = Envelope(type="Job")
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await until_all(bus, "DEAD", 1)
        assert (await event(bus, envelope))["last_error_code"] == "conflict"
    assert runs.count(1) == runs.count(2) > 1


async def test_a_write_that_cannot_be_stored_makes_only_its_own_event_dead(dsn: str) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], transaction: Transaction) -> None:
        text = "\x00" if received.payload["n"] == 2 else "fine"
        await transaction.publish(Envelope(type="Follow", payload={"text": text}))

    async with open_bus(dsn, stream("jobs", "Job"), stream("next", "Follow")) as bus:
        await bus.publish(*numbered("Job", 5))
        async with at_work(bus, dispatcher, "jobs"):
            await eventually(lambda: _ended(bus, 5))
        found = await rows(bus, "SELECT * FROM kingdom.outbox_all WHERE stream = 'jobs' ORDER BY id")
        assert (await statuses(bus))["PENDING"] == 4
    assert [row["status"] for row in found] == ["DONE", "DONE", "DEAD", "DONE", "DONE"]
    assert {row["attempt_count"] for row in found} == {1}
    assert {row["crash_count"] for row in found} == {0}
    assert found[2]["last_error_code"] == "malformed"


async def test_a_reaction_that_exceeds_the_idle_limit_of_the_server_uses_an_attempt(dsn: str) -> None:
    dispatcher, runs, hung, limits = Dispatcher(), list[int](), asyncio.Semaphore(0), Limits()

    @dispatcher.reaction("Job")
    async def handle(received: Event[dict[str, int]], _transaction: Transaction) -> None:
        runs.append(received.attempt)
        hung.release()
        await asyncio.Event().wait()

    policy = RetryPolicy(base=timedelta(milliseconds=5), max_attempts=2)
    slow = stream("jobs", "Job", retry=policy, deadline=24 * HOUR)
    async with open_bus(dsn, slow, idle_limit=HOUR) as bus:
        await bus.publish(Envelope(type="Job"))
        async with at_work(bus, dispatcher, timeout=limits):
            # Each attempt runs once in its group and once alone, each time shorter than the server allows.
            for _ in range(4):
                await hung.acquire()
                assert 0 < limits.seconds < HOUR.total_seconds()
                limits.let_pass()
            await until_all(bus, "DEAD", 1)
    assert runs == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("outcome", "status", "code", "attempts"),
    [
        (Retry(timedelta(hours=1), "busy", "later"), "PENDING", "busy", 1),
        (Dead("no such thing", "unknown_thing"), "DEAD", "unknown_thing", 1),
        (Permanent("cannot be"), "DEAD", "permanent", 1),
        (KeyError("oops"), "PENDING", "error", 1),
    ],
)
async def test_the_outcome_or_the_error_of_a_reaction_decides_the_state_of_its_event(
    dsn: str, outcome: Outcome | Exception, status: str, code: str, attempts: int
) -> None:
    dispatcher = Dispatcher()

    @dispatcher.reaction("Job")
    async def handle(_received: Event[dict[str, int]], _transaction: Transaction) -> Outcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with open_bus(dsn, stream("jobs", "Job", retry=LATE_RETRY)) as bus:
        envelope = Envelope(type="Job")
        await bus.publish(envelope)
        async with at_work(bus, dispatcher):
            await eventually(lambda: _ended(bus, 1))
        found = await event(bus, envelope)
    assert (found["status"], found["last_error_code"], found["attempt_count"]) == (status, code, attempts)


async def _ended(bus: PostgresBus, count: int) -> bool:
    """Return whether this many events of the stream jobs were settled, with any outcome."""
    found = await rows(
        bus,
        "SELECT id FROM kingdom.outbox_all WHERE stream = 'jobs' AND status <> 'PROCESSING'"
        " AND (status <> 'PENDING' OR attempt_count > 0)",
    )
    return len(found) == count


def _with_sum(record: Record, total: int) -> Record:
    return Record(kind=record.kind, id=record.id, state=record.state, version=record.version, doc={"sum": total})
