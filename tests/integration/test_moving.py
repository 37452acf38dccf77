"""Export and import: the new store equals the old one, and work continues there."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from psycopg.conninfo import conninfo_to_dict

from bench.postgres import PrivateBouncer, PrivateCluster
from kingdom.backends.postgres import PostgresBus, PostgresTransfer
from kingdom.bootstrap import transfer_of
from kingdom.bus import Dispatcher, Done, Event, LogEntry, Record, Retry, Transaction
from kingdom.clock import utc_now
from kingdom.errors import Permanent, Transient
from kingdom.storage.export_file import new_export, read_header, read_items
from kingdom.storage.transfer import AnyItem, EventItem, ItemCounts, LogEntryItem, Manifest, PauseItem, StoreTransfer
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.contract.scene import HOUR, KINDS, NO_WAIT, TOPOLOGY, Scene, eventually, ping, step
from tests.integration.store_states import LONG_AGO, TAKEN_KEYS, fill_every_state, redrive_while_next_is_in_flight

Contents = dict[str, list[AnyItem]]
# Every pair of backends is tested. The store of the second one comes from the fixture with the prefix `second_`.
MOVED_BACKENDS = {name: BACKENDS[name] for name in ("postgres", "files")}


@pytest.fixture
def second_realm(tmp_path: Path) -> Path:
    return tmp_path / "second_realm"


@pytest.fixture
def second_dsn(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    yield cluster.create_database("moved_into", template=migrated_template)
    cluster.drop_database("moved_into")


@pytest.fixture(params=MOVED_BACKENDS, ids=lambda name: f"from-{name}")
def old_backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    kind = MOVED_BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(kind.place_fixture)))
    yield backend
    backend.close()


@pytest.fixture(params=MOVED_BACKENDS, ids=lambda name: f"to-{name}")
def new_backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    kind = MOVED_BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(f"second_{kind.place_fixture}")))
    yield backend
    backend.close()


@pytest.fixture
async def old(old_backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with _scene(old_backend) as scene:
        yield scene


@pytest.fixture
async def new(new_backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with _scene(new_backend) as scene:
        yield scene
        scene.check()


@asynccontextmanager
async def _scene(backend: BackendUnderTest) -> AsyncIterator[Scene]:
    async with backend.open(TOPOLOGY, KINDS) as bus:
        yield Scene(backend, bus, backend.operations(bus))


async def export(store: StoreTransfer, file: Path) -> Manifest:
    async with store.snapshot() as snapshot:
        with new_export(file, store.store, snapshot.manifest, utc_now()) as add:
            async for item in snapshot.items:
                add(item)
    return snapshot.manifest


async def import_file(store: StoreTransfer, file: Path) -> ItemCounts:
    return await store.import_items(each(read_items(file)), read_header(file).manifest)


async def each(items: Iterator[AnyItem] | list[AnyItem]) -> AsyncIterator[AnyItem]:
    for item in items:
        yield item


async def move(old: Scene, new: Scene, file: Path) -> None:
    await export(transfer_of(old.bus), file)
    await import_file(transfer_of(new.bus), file)


async def contents(scene: Scene) -> Contents:
    """Return everything in a store by kind: the log in its order, the other items sorted."""
    found: Contents = {}
    async with transfer_of(scene.bus).snapshot() as snapshot:
        async for item in snapshot.items:
            # Not every store knows when an entry was written.
            known = msgspec.structs.replace(item, logged_at=None) if isinstance(item, LogEntryItem) else item
            found.setdefault(type(item).__name__, []).append(known)
    for kind, items in found.items():
        if kind != LogEntryItem.__name__:
            items.sort(key=msgspec.json.encode)
    return found


@pytest.mark.parametrize("name", ["store.jsonl", "store.jsonl.gz"])
async def test_the_new_store_has_the_same_contents_as_the_old_one(
    old: Scene, new: Scene, tmp_path: Path, name: str
) -> None:
    await fill_every_state(old)
    before = await contents(old)
    statuses = {event.status for event in before["EventItem"] if isinstance(event, EventItem)}
    assert statuses == {"PENDING", "DEAD", "DONE", "DISCARDED"}
    assert before.keys() == {"EventItem", "BlockItem", "RecordItem", "DedupKeyItem", "PauseItem", "LogEntryItem"}
    await move(old, new, tmp_path / name)
    assert await contents(new) == before
    assert await contents(old) == before
    async with new.bus.transaction() as transaction:
        assert [key for key in TAKEN_KEYS if await transaction.once(*key, HOUR)] == []


async def test_operators_see_the_same_in_the_other_store(old: Scene, new: Scene, tmp_path: Path) -> None:
    await fill_every_state(old)
    await move(old, new, tmp_path / "store.jsonl")
    assert await new.dead() == await old.dead()
    assert [entry.entry for entry in await new.read_log()] == [entry.entry for entry in await old.read_log()]
    pending = [replace(row, oldest_pending_seconds=0) for row in await new.operations.stats()]
    assert pending == [replace(row, oldest_pending_seconds=0) for row in await old.operations.stats()]


async def test_open_work_continues_in_its_order(old: Scene, new: Scene, tmp_path: Path) -> None:
    await old.bus.publish(*(step("stuck", number) for number in range(3)))
    stuck = await old.kill_next("line")
    await old.bus.publish(*(step("begun", number) for number in range(5)))
    await old.settle(Done(), *await old.claim("line", 2))
    await old.settle(Retry(NO_WAIT, "busy", "busy"), await old.claim_one("line"))
    await old.bus.publish(*(step("fresh", number) for number in range(3)), *map(ping, range(3)))
    await move(old, new, tmp_path / "store.jsonl")
    dispatcher, order = Dispatcher(), defaultdict[str | None, list[int]](list)

    async def note(event: Event[dict[str, int]], _transaction: Transaction) -> None:
        order[event.envelope.partition_key].append(event.payload["number"])

    dispatcher.reaction("Step")(note)
    dispatcher.reaction("Ping")(note)
    async with new.working(dispatcher, "line", "free"):
        await eventually(lambda: len(new.picture.rows) == 3, "all that is not stuck is done")
        assert order == {"begun": [2, 3, 4], "fresh": [0, 1, 2], None: [0, 1, 2]}
        await new.redrive(stuck)
        await eventually(lambda: not new.picture.rows, "what was stuck is done")
    assert order["stuck"] == [0, 1, 2]


async def test_a_redriven_event_that_was_overtaken_keeps_its_place_after_the_move(
    old: Scene, new: Scene, tmp_path: Path
) -> None:
    await redrive_while_next_is_in_flight(old)
    await move(old, new, tmp_path / "store.jsonl")
    done = await new.drain("skipping", size=1)
    assert [delivery.envelope.payload["number"] for delivery in done] == [1, 0, 2]


async def test_positions_and_tokens_of_the_new_store_are_higher_than_all_of_the_old_store(new: Scene) -> None:
    gone = Manifest(census=ItemCounts(), last_position=5_000, last_token=7_000)
    await transfer_of(new.bus).import_items(each([]), gone)
    await new.bus.publish(ping())
    delivery = await new.claim_one("free")
    assert delivery.position > 5_000
    assert delivery.token > 7_000


async def test_the_highest_position_and_token_are_exported_after_their_events_were_removed(old: Scene) -> None:
    await old.bus.publish(ping())
    delivery = await old.claim_one("free")
    await old.settle(Done(), delivery)
    old.backend.clear()
    async with transfer_of(old.bus).snapshot() as snapshot:
        assert snapshot.manifest.census == ItemCounts()
        assert snapshot.manifest.last_position >= delivery.position
        assert snapshot.manifest.last_token >= delivery.token


async def test_a_store_with_events_in_flight_is_not_exported_until_their_leases_end(old: Scene) -> None:
    await old.bus.publish(*map(ping, range(3)))
    held = await old.claim("free", 2)
    with pytest.raises(Transient, match=r"2 event\(s\) are in flight under 1 lease"):
        await contents(old)
    old.backend.expire({held[0].token})
    events = [event for event in (await contents(old))["EventItem"] if isinstance(event, EventItem)]
    assert sorted(event.crash_count for event in events) == [0, 1, 1]
    assert {event.status for event in events} == {"PENDING"}


async def test_a_settled_lease_does_not_count_as_work_in_flight(old: Scene) -> None:
    await old.bus.publish(ping())
    await old.settle(Done(), await old.claim_one("free"))
    # Files close a lease with its last event, PostgreSQL a little later.
    assert bool(old.picture.leases) == (old.backend.name == "postgres")
    assert len((await contents(old))["EventItem"]) == 1


async def test_only_an_empty_store_accepts_an_import(old: Scene, new: Scene, tmp_path: Path) -> None:
    await fill_every_state(old)
    await new.operations.pause("free", reason="not yet", actor="tester")
    before = await contents(new)
    with pytest.raises(Permanent, match="not empty, it has 1 paused streams, 1 log entries"):
        await move(old, new, tmp_path / "store.jsonl")
    assert await contents(new) == before


async def test_a_file_that_ends_too_early_leaves_the_new_store_empty(old: Scene, new: Scene, tmp_path: Path) -> None:
    await fill_every_state(old)
    file = tmp_path / "store.jsonl"
    await export(transfer_of(old.bus), file)
    manifest = read_header(file).manifest
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(Permanent, match="ends too early"):
        await transfer_of(new.bus).import_items(each(read_items(file)), manifest)
    assert await contents(new) == {}


def _pause(stream: str) -> PauseItem:
    return PauseItem(stream=stream, reason="r", actor="a", since=LONG_AGO)


def _waiting(position: int, due_at: datetime | None) -> EventItem:
    return EventItem(
        stream="line",
        position=position,
        ordered=True,
        envelope=step().to_wire(),
        status="PENDING",
        attempt=0,
        max_attempts=5,
        crash_count=0,
        token=0,
        created_at=LONG_AGO,
        due_at=due_at,
    )


@pytest.mark.parametrize(
    ("items", "census", "words"),
    [
        ([_pause("a")], ItemCounts(paused_streams=2), "1 paused streams instead of 2"),
        ([_pause("a"), _pause("a")], ItemCounts(paused_streams=2), "this twice"),
        ([_waiting(1, LONG_AGO), _waiting(2, LONG_AGO)], ItemCounts(open_events=2), "two heads"),
        ([_waiting(1, None), _waiting(2, None)], ItemCounts(open_events=2), "no head"),
    ],
)
async def test_a_contradictory_history_is_refused_and_not_stored(
    new: Scene, items: list[AnyItem], census: ItemCounts, words: str
) -> None:
    with pytest.raises(Permanent, match=words):
        await transfer_of(new.bus).import_items(each(items), Manifest(census=census, last_position=2, last_token=0))
    assert await contents(new) == {}


async def test_a_publish_during_the_move_waits_for_its_end(old: Scene, new: Scene, tmp_path: Path) -> None:
    await fill_every_state(old)
    file = tmp_path / "store.jsonl"
    await export(transfer_of(old.bus), file)
    late = ping(99)

    async def interrupted(items: AsyncIterable[AnyItem]) -> AsyncIterator[AnyItem]:
        async for item in items:
            yield item
            if not publishing:
                publishing.append(asyncio.create_task(new.bus.publish(late)))
                await new.until_waiting(1)

    publishing: list[asyncio.Task[Any]] = []
    manifest = read_header(file).manifest
    await transfer_of(new.bus).import_items(interrupted(each(read_items(file))), manifest)
    await publishing[0]
    assert new.picture.of(late.event_id).position > manifest.last_position


async def test_postgresql_keeps_the_time_at_which_an_entry_was_written_or_uses_the_time_of_the_event(dsn: str) -> None:
    logged = LogEntryItem(
        type="t", actor="a", data={}, at=LONG_AGO, trace_id="", aggregate_type="", aggregate_id="", logged_at=utc_now()
    )
    without_written_time = msgspec.structs.replace(logged, logged_at=None)
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        store = PostgresTransfer(bus)
        manifest = Manifest(census=ItemCounts(log_entries=2), last_position=0, last_token=0)
        await store.import_items(each([logged, without_written_time]), manifest)
        async with store.snapshot() as snapshot:
            assert [item async for item in snapshot.items] == [
                logged,
                msgspec.structs.replace(logged, logged_at=LONG_AGO),
            ]


async def test_a_snapshot_of_postgresql_does_not_see_what_is_written_while_it_is_read(dsn: str) -> None:
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        await bus.publish(ping())
        async with PostgresTransfer(bus).snapshot() as snapshot:
            async with bus.transaction() as transaction:
                await transaction.publish(ping())
                await transaction.append(LogEntry(type="late", actor="tester"))
            assert [type(item) async for item in snapshot.items] == [EventItem]
        assert snapshot.manifest.census == ItemCounts(open_events=1)


async def test_a_store_is_moved_through_pgbouncer(
    cluster: PrivateCluster, dsn: str, second_dsn: str, tmp_path: Path
) -> None:
    async with _scene(BACKENDS["postgres"](dsn)) as scene:
        await fill_every_state(scene)
        before = await contents(scene)
        scene.backend.close()
    file = tmp_path / "store.jsonl.gz"
    with PrivateBouncer(cluster.dsn) as bouncer:
        old, new = (str(conninfo_to_dict(place)["dbname"]) for place in (dsn, second_dsn))
        async with PostgresBus(bouncer.dsn(old), TOPOLOGY, through_pgbouncer=True) as bus:
            await export(PostgresTransfer(bus), file)
        async with PostgresBus(bouncer.dsn(new), TOPOLOGY, through_pgbouncer=True) as bus:
            await import_file(PostgresTransfer(bus), file)
    async with _scene(BACKENDS["postgres"](second_dsn)) as scene:
        assert await contents(scene) == before
        scene.backend.close()


# The smaller count fills a little more than two batches. Half of the items are events, half are records.
@pytest.mark.parametrize("count", [2_100, pytest.param(100_000, marks=pytest.mark.long)])
async def test_many_items_move_and_are_equal(old: Scene, new: Scene, tmp_path: Path, count: int) -> None:
    for start in range(0, count // 2, 1000):
        numbers = range(start, min(start + 1000, count // 2))
        async with old.bus.transaction() as transaction:
            await transaction.publish(*(step(f"key-{n % 97}", n) if n % 2 else ping(n) for n in numbers))
            for n in numbers:
                await transaction.put(Record(kind="job", id=f"job-{n}", state="open", doc={"number": n}))
    await move(old, new, tmp_path / "there.jsonl")
    await export(transfer_of(new.bus), tmp_path / "again.jsonl")
    for one, other in zip(read_items(tmp_path / "there.jsonl"), read_items(tmp_path / "again.jsonl"), strict=True):
        assert one == other
