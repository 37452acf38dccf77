"""A page about the court costs at most six statements, the same however many records there are."""

from pathlib import Path

import psycopg

from kingdom.bus.throughput import THROUGHPUT
from kingdom.realm import Realm
from kingdom.roles import declare_application
from tests.contract.backends import BACKENDS
from tests.integration.web.court_scene import ASSIGNED, GENERAL, GIVEN, UNROUTED, fill_court, install_generals
from tests.integration.web.test_page_costs import FEW, MANY, STATEMENTS_MAX, statements

# Copies of every event, assignment and host.
_COPY = """
INSERT INTO kingdom.record (kind, id, version, state, ended_at, doc)
SELECT kind, id || '-' || g, 1, state, ended_at, doc || jsonb_build_object('id', id || '-' || g)
  FROM kingdom.record, generate_series(1, %(copies)s) g
 WHERE kind IN ('event', 'task', 'host')
"""


def copy_records(dsn: str, copies: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_COPY, {"copies": copies})
        connection.execute("VACUUM ANALYZE")


async def test_a_page_executes_at_most_six_statements_at_ten_records_and_at_a_thousand(
    dsn: str, tmp_path: Path
) -> None:
    app = declare_application(Realm())
    backend = BACKENDS["postgres"](dsn)
    async with backend.open(app.topology, (THROUGHPUT, *app.kinds)) as bus:
        dead = await fill_court(bus, backend.operations(bus))
    install_generals(tmp_path / "generals")
    paths = (
        *("/events", "/events?limit=200", "/events?status=completed", f"/events/{GIVEN}", f"/events/{UNROUTED}"),
        *(f"/events/{GIVEN}/why", f"/events/{UNROUTED}/why"),
        *("/assignments", f"/assignments?status=failed&general={GENERAL}", f"/assignments/{ASSIGNED}"),
        *("/bus", "/bus?stream=court.event", "/bus/pins", f"/bus/dead-letters/{dead}"),
        *("/generals", f"/generals/{GENERAL}", "/costs", "/costs?days=365", "/hosts"),
    )
    few = await statements(dsn, tmp_path, paths)
    copy_records(dsn, MANY // FEW)
    assert await statements(dsn, tmp_path, paths) == few
    assert max(few.values()) <= STATEMENTS_MAX, few
