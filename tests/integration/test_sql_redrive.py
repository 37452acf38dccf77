"""A person redrives dead letters from psql, with the same effect as `kingdom bus redrive`."""

from collections.abc import AsyncIterator
from typing import Any, LiteralString

import psycopg
import pytest

from kingdom.backends.postgres import migrate
from kingdom.bus import Delivery, Done, Envelope, LogCursor
from kingdom.ids import new_event_id
from tests.contract.backends import PostgresBackend
from tests.contract.scene import KINDS, TOPOLOGY, Scene, ids, ping, skip, step


class PsqlScene:
    """A store, and a person with psql in front of it."""

    def __init__(self, scene: Scene, dsn: str) -> None:
        self.scene = scene
        self._dsn = dsn
        self.notices: list[str] = []

    async def asks(self, statement: LiteralString, *parameters: object) -> list[Any]:
        """Return the values of the first column."""
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            connection.add_notice_handler(lambda notice: self.notices.append(notice.message_primary or ""))
            return [row[0] for row in await (await connection.execute(statement, parameters)).fetchall()]

    async def redrives(self, dead: Delivery) -> None:
        assert await self.asks("SELECT kingdom.redrive(%s)", dead.envelope.event_id) == [1]
        self.scene.check()


@pytest.fixture
async def psql(dsn: str) -> AsyncIterator[PsqlScene]:
    backend = PostgresBackend(dsn)
    async with backend.open(TOPOLOGY, KINDS) as bus:
        yield PsqlScene(Scene(backend, bus, backend.operations(bus)), dsn)
    backend.close()


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [delivery.envelope.payload["number"] for delivery in deliveries]


async def test_a_redriven_blocker_frees_its_key(psql: PsqlScene) -> None:
    events = [step(number=number) for number in range(3)]
    await psql.scene.bus.publish(*events)
    dead = await psql.scene.kill_next("line")
    assert await psql.scene.claim("line") == []
    await psql.redrives(dead)
    assert ids(await psql.scene.drain("line")) == ids(events)


async def test_a_redriven_event_is_the_next_of_its_key_or_follows_the_events_in_flight(
    psql: PsqlScene,
) -> None:
    await psql.scene.bus.publish(*(skip(number=number) for number in range(3)))
    await psql.redrives(await psql.scene.kill_next("skipping"))
    assert numbers(await psql.scene.drain("skipping")) == [0, 1, 2]
    await psql.scene.bus.publish(*(skip(number=number) for number in range(4)))
    dead = await psql.scene.kill_next("skipping")
    flying = await psql.scene.claim_one("skipping")
    await psql.redrives(dead)
    assert await psql.scene.claim("skipping") == []
    await psql.scene.settle(Done(), flying)
    assert numbers(await psql.scene.drain("skipping")) == [0, 2, 3]


async def test_a_redriven_event_starts_again_with_its_history_and_the_log_says_who_did_it(psql: PsqlScene) -> None:
    await psql.scene.bus.publish(ping())
    dead = await psql.scene.kill_next("free")
    event_id = dead.envelope.event_id
    assert await psql.asks("SELECT kingdom.redrive(%s, stream => 'free', actor => 'anna')", event_id) == [1]
    (again,) = await psql.scene.claim("free")
    assert (again.position, again.attempt) == (dead.position, 1)
    (history,) = await psql.asks("SELECT history FROM kingdom.outbox_event WHERE event_id = %s", event_id)
    assert [(each["what"], each["actor"], each["attempts"]) for each in history] == [("redriven", "anna", 1)]
    entries = [each.entry for each in await psql.scene.operations.read_log(LogCursor(), 100)]
    (entry,) = [each for each in entries if each.type == "dead_letter.redriven"]
    assert (entry.actor, dict(entry.data)) == ("anna", {"event_id": str(event_id), "stream": "free"})


async def test_an_event_that_is_dead_in_two_streams_is_redriven_in_both_or_in_one(psql: PsqlScene) -> None:
    async def kill_both() -> object:
        await psql.scene.bus.publish(Envelope(type="Both", partition_key="k"))
        await psql.scene.kill_next("free")
        return (await psql.scene.kill_next("other")).envelope.event_id

    assert await psql.asks("SELECT kingdom.redrive(%s)", await kill_both()) == [2]
    await psql.scene.drain("free")
    await psql.scene.drain("other")
    await kill_both()
    # A query redrives many events.
    redriven = await psql.asks(
        "SELECT kingdom.redrive(event_id, stream) FROM kingdom.outbox_event WHERE status = 'DEAD' AND stream = 'other'"
    )
    assert redriven == [1]
    assert (len(await psql.scene.claim("other")), await psql.scene.claim("free")) == (1, [])


async def test_an_event_that_is_not_dead_is_left_alone_and_reported(psql: PsqlScene) -> None:
    waiting = ping()
    await psql.scene.bus.publish(waiting)
    before = psql.scene.picture
    for event_id in (waiting.event_id, new_event_id()):
        assert await psql.asks("SELECT kingdom.redrive(%s)", event_id) == [0]
    assert psql.scene.picture == before
    assert psql.notices[0] == f"event {waiting.event_id} is not a dead letter"
    assert await psql.asks("SELECT count(*) FROM kingdom.log WHERE type = 'dead_letter.redriven'") == [0]


async def test_a_store_in_another_schema_has_its_own_function(dsn: str, psql: PsqlScene) -> None:
    await migrate(dsn, "shop")
    assert await psql.asks("SELECT shop.redrive(%s)", new_event_id()) == [0]
