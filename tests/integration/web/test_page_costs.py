"""A page costs at most six statements, the same however many runs there are."""

from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresOperations
from kingdom.bus import Bus, Operations
from kingdom.realm import Realm
from kingdom.roles import declare_application
from tests.contract.backends import BACKENDS
from tests.integration.web.scene import fill_realm
from tests.integration.web.site import serving
from tests.integration.web.test_flat import fill

FEW, MANY = 10, 1000
STATEMENTS_MAX = 6
RUN = "/runs/wf-task-20261118-001"
PATHS = (
    "/",
    "/inbox",
    "/runs",
    "/runs?limit=200",
    "/runs?status=RUNNING&status=PAUSED&status=AWAITING&status=FAILED&general=gen-pr",
    RUN,
    "/followups",
    # A run that opened a followed pull request, and a round of it.
    *("/runs/wf-task-20261118-002/followups", "/runs/wf-task-20261118-004/followups"),
    *(f"{RUN}?tab={tab}" for tab in ("changes", "reports", "outside", "cost", "story")),
)


async def statements(dsn: str, folder: Path, paths: Sequence[str] = PATHS) -> dict[str, int]:
    """Return how many statements each page executes."""
    app, found = declare_application(Realm()), {}
    async with ExplainedBus(dsn, app.topology, app.kinds) as explained:

        def wrap(_bus: Bus, _operations: Operations) -> tuple[Bus, Operations]:
            return explained, PostgresOperations(explained)

        async with serving(BACKENDS["postgres"](dsn), folder, wrap=wrap) as site:
            cookie = await site.signs_in("anna")
            for path in paths:
                explained.plans.clear()
                reply = await site.send("GET", path, Cookie=cookie, Accept="text/html")
                assert reply.status == 200, reply.text
                found[path] = len(explained.plans)
    return found


@pytest.mark.parametrize("many", [MANY, pytest.param(100 * MANY, marks=pytest.mark.long)])
async def test_a_page_executes_at_most_six_statements_however_many_runs_there_are(
    dsn: str, tmp_path: Path, many: int
) -> None:
    app = declare_application(Realm())
    async with BACKENDS["postgres"](dsn).open(app.topology, app.kinds) as bus:
        await fill_realm(bus)
    fill(dsn, FEW)
    few = await statements(dsn, tmp_path)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM kingdom.record WHERE kind = 'workflow' AND id NOT LIKE 'wf-task-20261118%'")
    fill(dsn, many)
    assert await statements(dsn, tmp_path) == few
    assert max(few.values()) <= STATEMENTS_MAX, few
