"""Many runs at once, with an agent that answers at once, on PostgreSQL: all of them finish, and nothing is left."""

from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from bench.engine.kingdom import STEPS_PER_RUN, TASKS_PER_RUN, WORKS, kingdom_at_work, start_runs, wait_until_completed
from kingdom.bootstrap import open_bus
from kingdom.workflow.reactions import engine
from tests.acceptance.store import open_rows

PATIENCE = timedelta(minutes=8)
_STATES = (
    "SELECT kind, state, count(*) FROM kingdom.record WHERE kind IN ('workflow', 'command', 'document') GROUP BY 1, 2"
)
_LOGGED_COUNTS = (
    "SELECT type, count(*), count(DISTINCT aggregate_id) FROM kingdom.log WHERE aggregate_type = 'Workflow' GROUP BY 1"
)


def states(dsn: str) -> dict[tuple[str, str], int]:
    with psycopg.connect(dsn) as connection:
        return {(kind, state): number for kind, state, number in connection.execute(_STATES)}


def logged_counts(dsn: str) -> dict[str, tuple[int, int]]:
    """Return how often each event was logged, and about how many runs."""
    with psycopg.connect(dsn) as connection:
        return {kind: (times, runs) for kind, times, runs in connection.execute(_LOGGED_COUNTS)}


@pytest.mark.parametrize(
    "runs", [pytest.param(100, marks=pytest.mark.benches), pytest.param(1000, marks=pytest.mark.long)]
)
async def test_runs_that_start_together_all_complete_with_every_step_done_once(
    dsn: str, tmp_path: Path, runs: int
) -> None:
    app = engine()
    async with open_bus(dsn, app.topology, app.kinds) as bus, kingdom_at_work(bus, dsn, tmp_path):
        started = await start_runs(bus, runs)
        await wait_until_completed(dsn, patience=PATIENCE)
    assert len(set(started)) == runs
    assert states(dsn) == {
        ("workflow", "COMPLETED"): runs,
        ("command", "ANSWERED"): runs * STEPS_PER_RUN,
        ("document", "ACTIVE"): runs * TASKS_PER_RUN,
    }
    events = logged_counts(dsn)
    assert events["TaskCompleted"] == (runs * TASKS_PER_RUN, runs)
    assert events["WorkCompleted"] == (runs * WORKS, runs)
    assert events["WorkflowCompleted"] == (runs, runs)
    assert open_rows(dsn) == []
