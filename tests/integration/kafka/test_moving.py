"""A store that hands events to another store by topics moves to another database, while the other one goes on."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.postgres import PrivateCluster
from bench.two_stores.application import HANDED, IN, RECEIVED, application
from kingdom.backends.files import FilesBus, FilesTransfer
from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.postgres import PostgresBus, PostgresTransfer
from kingdom.bus import Application, Envelope, Topology
from kingdom.errors import Permanent, Transient
from tests.integration.running import at_work, eventually
from tests.integration.test_moving import export, import_file

pytestmark = pytest.mark.kafka


@pytest.fixture
def databases(cluster: PrivateCluster, migrated_template: str) -> Iterator[dict[str, str]]:
    names = ("north", "south", "moved")
    yield {name: cluster.create_database(f"kafka_{name}", template=migrated_template) for name in names}
    for name in names:
        cluster.drop_database(f"kafka_{name}")


def brokers_of(brokers: Brokers, store: str) -> Brokers:
    return Brokers(servers=brokers.servers, prefix=f"{brokers.prefix}{store}.", partitions=2)


@asynccontextmanager
async def running(dsn: str, app: Application, brokers: Brokers) -> AsyncIterator[KafkaBus]:
    """Run a courier and a worker of a store."""
    async with KafkaBus(dsn, app.topology, app.kinds, brokers=brokers) as bus, at_work(bus, app.dispatcher, IN):
        courier = Courier(bus, brokers)
        task = asyncio.create_task(courier.run())
        try:
            yield bus
        finally:
            courier.stop()
            await task


def handed(number: int) -> Envelope:
    return Envelope(type=HANDED, payload={"number": number}, partition_key="key")


async def received(bus: PostgresBus) -> list[int]:
    async with bus.transaction() as transaction:
        found = await transaction.get(RECEIVED.name, "key")
    return list(found.doc["numbers"]) if found else []


async def until_received(bus: PostgresBus, count: int) -> None:
    async def all_received() -> bool:
        return len(await received(bus)) >= count

    await eventually(all_received)
    assert await received(bus) == list(range(count))


async def test_a_store_moves_and_continues_in_both_directions_while_the_other_store_goes_on(
    databases: dict[str, str], brokers: Brokers, tmp_path: Path
) -> None:
    north, south = brokers_of(brokers, "north"), brokers_of(brokers, "south")
    north_app, south_app = application(south.prefix), application(north.prefix)
    file = tmp_path / "north.jsonl"
    async with running(databases["south"], south_app, south) as southern:
        async with running(databases["north"], north_app, north) as northern:
            for number in range(20):
                await asyncio.gather(northern.publish(handed(number)), southern.publish(handed(number)))
            await until_received(northern, 20)
            await until_received(southern, 20)
        # The other store publishes while this one moves.
        for number in range(20, 30):
            await southern.publish(handed(number))
        async with PostgresBus(databases["north"], north_app.topology, north_app.kinds) as old:
            await export(PostgresTransfer(old), file)
        async with PostgresBus(databases["moved"], north_app.topology, north_app.kinds) as new:
            await import_file(PostgresTransfer(new), file)
        async with running(databases["moved"], north_app, north) as moved:
            for number in range(20, 30):
                await moved.publish(handed(number))
            await until_received(moved, 30)
            await until_received(southern, 30)


async def test_a_store_whose_courier_has_not_sent_everything_is_not_exported(
    databases: dict[str, str], brokers: Brokers, tmp_path: Path
) -> None:
    app = application(brokers.prefix)
    async with PostgresBus(databases["north"], app.topology, app.kinds) as bus:
        await bus.publish(handed(0))
        with pytest.raises(Transient, match="wait for the courier"):
            await export(PostgresTransfer(bus), tmp_path / "north.jsonl")


async def test_a_store_of_files_refuses_an_export_with_streams_on_kafka(
    databases: dict[str, str], brokers: Brokers, tmp_path: Path
) -> None:
    app, file = application(brokers.prefix), tmp_path / "north.jsonl"
    async with running(databases["north"], app, brokers) as bus:
        await bus.publish(handed(0))
        courier_has_sent = Courier(bus, brokers)

        async def is_sent() -> bool:
            return not await courier_has_sent.lag()

        await eventually(is_sent)
    async with PostgresBus(databases["north"], app.topology, app.kinds) as stopped:
        await export(PostgresTransfer(stopped), file)
    async with FilesBus(tmp_path / "realm", Topology(()), app.kinds) as files:
        with pytest.raises(Permanent, match="streams on Kafka"):
            await import_file(FilesTransfer(files), file)
