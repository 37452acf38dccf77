"""The cost of admission does not depend on the number of waiting events."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.bus import Transaction
from kingdom.court.documents import ExternalEvent, Priority, Route
from kingdom.court.king.admission import admit, release_returned_generals
from kingdom.court.king.admission_rules import rank_text
from kingdom.court.king.context import KingContext
from kingdom.court.king.release import release_assignment, release_inactive
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.waiting_queue import WaitingEntry, release_held
from kingdom.court.quota import WANTED, Quota
from kingdom.court.streams import TOPOLOGY
from tests.integration.court.king.scene import EVERY_KIND
from tests.unit.court.king.making import NOON, make_event, make_package, wants

TERMS = KingContext(
    settings=KingSettings(soldiers=1),
    packages=lambda: [make_package("gen-pr", wants("*"))],
    zone=ZoneInfo("UTC"),
    clock=lambda: NOON,
)
FEW, MANY = 10, 10_000
_FILL = """
INSERT INTO kingdom.record (kind, id, version, state, owner, doc)
SELECT kind, id, 1, state, owner, doc
  FROM jsonb_to_recordset(%s::jsonb) AS x(kind text, id text, state text, owner text, doc jsonb)
"""


def waiting(number: int, owner: str, repo: str) -> list[dict[str, Any]]:
    """Return an event that waits, as its two records."""
    event = make_event(number, repo=repo, created_at=NOON - timedelta(seconds=number))
    place = WaitingEntry(
        event_id=event.id,
        general="gen-pr",
        rule="gen-pr#1",
        priority=Priority.NORMAL,
        since=event.created_at,
        repo=repo,
    )
    place_id = f"{rank_text(place.rank)}-{event.id}"
    routed = msgspec.structs.replace(event, routes=(Route(general="gen-pr", rule="gen-pr#1", waiting=place_id),))
    return [
        {"kind": "event", "id": event.id, "state": "pending", "doc": msgspec.to_builtins(routed)},
        {"kind": "waiting", "id": place_id, "state": "waiting", "owner": owner, "doc": msgspec.to_builtins(place)},
    ]


def ended(event: ExternalEvent) -> dict[str, Any]:
    return {"kind": "event", "id": event.id, "state": "completed", "doc": msgspec.to_builtins(event)}


def fill(dsn: str, size: int) -> None:
    """Store this many events that wait for a slot, as many for one repository, and ten times as many ended events."""
    rows = [row for number in range(size) for row in waiting(number, "ready", f"acme/{number}")]
    rows += [row for number in range(size, 2 * size) for row in waiting(number, "repo:acme/app", "acme/app")]
    full = Quota(scope="repo:acme/app", limit=Decimal(1)).hold("task-1")
    rows.append(
        {"kind": "quota", "id": full.scope, "state": "current", "owner": WANTED, "doc": msgspec.to_builtins(full)}
    )
    rows += [ended(make_event(number, source="jira")) for number in range(10 * size)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FILL, [json.dumps(rows)])
        connection.execute("VACUUM ANALYZE")


async def cost(bus: ExplainedBus, act: Callable[[Transaction], Awaitable[Any]]) -> tuple[int, int]:
    """Return how many statements an action executes, and how many buffers they touch."""
    bus.take()
    async with bus.transaction() as transaction:
        await act(transaction)
    plans = bus.take()
    return len(plans), sum(plan.buffers for plan in plans)


async def run_periodic_check(transaction: Transaction) -> None:
    await release_held(transaction, NOON, 50)
    await release_returned_generals(transaction, TERMS)
    await release_inactive(transaction, NOON, TERMS)
    await admit(transaction, NOON, TERMS)


async def costs(dsn: str, size: int) -> dict[str, tuple[int, int]]:
    fill(dsn, size)
    async with ExplainedBus(dsn, TOPOLOGY, EVERY_KIND, connections=1) as bus:
        async with bus.transaction() as transaction:
            (first,) = (await admit(transaction, NOON, TERMS)).assignments
        return {
            "nothing can be admitted": await cost(bus, lambda transaction: admit(transaction, NOON, TERMS)),
            "an assignment is released": await cost(
                bus, lambda transaction: release_assignment(transaction, first.id, NOON, TERMS)
            ),
            "an event is admitted": await cost(bus, lambda transaction: admit(transaction, NOON, TERMS)),
            "the periodic check": await cost(bus, run_periodic_check),
        }


async def test_admission_costs_as_much_with_ten_thousand_waiting_events_as_with_ten(
    dsn: str, request: pytest.FixtureRequest
) -> None:
    cluster = request.getfixturevalue("cluster")
    name = "king_few"
    few = await costs(cluster.create_database(name, template=request.getfixturevalue("migrated_template")), FEW)
    cluster.drop_database(name)
    many = await costs(dsn, MANY)
    for what, (statements, buffers) in few.items():
        # The server may report the last statement a moment later.
        assert many[what][0] <= statements + 1, what
        # In a deeper index, each lookup reads a page or two more.
        assert many[what][1] <= buffers * 2 + 20, what
