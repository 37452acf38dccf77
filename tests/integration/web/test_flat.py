"""The cost of a request does not depend on the number of stored runs."""

import json
import zlib
from pathlib import Path

import msgspec
import psycopg
import pytest

from bench.explain import ExplainedBus
from kingdom.backends.postgres import PostgresBus, PostgresOperations, PostgresRunTexts
from kingdom.bus import Bus, LogEntry, Operations, Record
from kingdom.clock import utc_now
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.storage.run_texts import TextPiece
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.checkpoint import Checkpoint, digest
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import CheckpointStatus
from kingdom.workflow.records import HOSTS, WORKFLOWS, load_workflow
from kingdom.workflow.template_file import read_template
from tests.acceptance.sample_store import TEMPLATE
from tests.contract.backends import BACKENDS
from tests.integration.web.site import serving

FEW, MANY = 1_000, 100_000
# Every other run is of a General, and nine of ten have ended.
_FILL = """
INSERT INTO kingdom.record (kind, id, version, state, ended_at, doc)
SELECT 'workflow', id, 1, state, CASE WHEN state = 'COMPLETED' THEN now() END,
       %(doc)s::jsonb
       || jsonb_build_object('id', id, 'status', state, 'createdAt', to_jsonb(now() - g * interval '1 s'))
  FROM (SELECT g, CASE WHEN g %% 10 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END AS state,
               CASE WHEN g %% 2 = 0 THEN 'wf-task-2026' || lpad((9999 - g %% 10000)::text, 4, '0') || '-' || g
                    ELSE 'wf-0' || lpad((1000000 - g)::text, 13, '0') END AS id
          FROM generate_series(1, %(runs)s) g) made
"""
# The transcript of a run on another machine, in as many pieces as there are runs.
_FILL_TRANSCRIPT = """
INSERT INTO kingdom.run_text (run, name, start, stop, is_cut, content)
SELECT %(run)s, %(soldier)s, g * %(size)s, (g + 1) * %(size)s, false, %(content)s
  FROM generate_series(0, %(pieces)s - 1) g
"""
COPIED_RUN, SOLDIER, POINT = "wf-told", "soldier-1-1", "cp-1"
LINE = b'{"type": "assistant", "text": "' + b"x" * 960 + b'"}\n'
PATHS = (
    "/api/v1/runs",
    "/api/v1/runs?limit=200",
    "/api/v1/runs?status=RUNNING&status=COMPLETED",
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/log",
    f"/api/v1/runs/{COPIED_RUN}",
    f"/api/v1/runs/{COPIED_RUN}/checkpoints",
    f"/api/v1/runs/{COPIED_RUN}/transcript",
    f"/api/v1/runs/{COPIED_RUN}/transcript?soldier={SOLDIER}&after={500 * len(LINE)}",
    f"/api/v1/runs/{COPIED_RUN}/diff",
    f"/api/v1/runs/{COPIED_RUN}/checkpoints/{POINT}/diff",
    "/api/v1/events",
    "/api/v1/assignments",
    "/api/v1/questions",
    "/api/v1/petitions",
    "/api/v1/log",
    "/api/v1/status",
    "/api/v1/costs?days=400",
    "/api/v1/hosts",
    "/api/v1/bus/streams",
    "/api/v1/bus/dead-letters",
)
# The status reads at most a thousand running runs, everything else a page.
STATEMENTS_MAX = {"/api/v1/status": 60}


def fill(dsn: str, runs: int) -> str:
    """Store runs, and return the id of one of them."""
    run = Workflow.copied_from(read_template(TEMPLATE, "greet.yaml"), "wf-x", utc_now(), name="A run")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FILL, {"doc": json.dumps(run.document()), "runs": runs})
        connection.execute("VACUUM ANALYZE")
        row = connection.execute("SELECT id FROM kingdom.record WHERE kind = 'workflow' LIMIT 1").fetchone()
    assert row
    return str(row[0])


async def store_copied_run(dsn: str, pieces: int) -> None:
    """Store a run of another machine with the copies of its transcript and of the diff of its checkpoint."""
    app = declare_application(Realm())
    run = Workflow.copied_from(read_template(TEMPLATE, "greet.yaml"), COPIED_RUN, utc_now(), name="Far away")
    run.placement, (work,) = Placement(host="far", epoch=1), run.works
    work.agent.session = f"{SOLDIER}/session"
    work.checkpointing.status, work.checkpointing.checkpoint_id = CheckpointStatus.TAKEN, POINT
    run.work_trees.append(WorkTree(id="tree", ref=GitRef(git_id="app", base_branch="main"), branch="kingdom/told"))
    run.checkpoints.append(
        Checkpoint(
            id=POINT, work_id=work.id, commits={"tree": "b"}, definitions=digest(run.works), created_at=utc_now()
        )
    )
    host = Host(id="far", epoch=1, slots=1, machine="another machine", directory="/nowhere")
    async with PostgresBus(dsn, app.topology, app.kinds) as bus:
        async with bus.transaction() as transaction:
            await transaction.put(
                Record(
                    kind=WORKFLOWS.name, id=COPIED_RUN, state=run.status, doc=run.document(), indexed={"host": "far"}
                )
            )
            if await transaction.get(HOSTS.name, host.id) is None:
                await transaction.put(
                    Record(kind=HOSTS.name, id=host.id, state=host.status, doc=msgspec.to_builtins(host))
                )
            started = {"session": work.agent.session, "workId": work.id, "host": "far"}
            await transaction.append(
                LogEntry(
                    type="AgentStarted", actor="far", data=started, aggregate_type="Workflow", aggregate_id=COPIED_RUN
                )
            )
        head = json.dumps({"since": "a", "until": "b"}).encode()
        await PostgresRunTexts(bus).append(
            COPIED_RUN, f"diff/{POINT}/tree/base", [TextPiece(start=0, content=head + b"\n+x")]
        )
    values = {
        "run": COPIED_RUN,
        "soldier": SOLDIER,
        "size": len(LINE),
        "content": zlib.compress(LINE),
        "pieces": pieces,
    }
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FILL_TRANSCRIPT, values)
        connection.execute("VACUUM ANALYZE")


async def costs(dsn: str, folder: Path, run: str) -> dict[str, tuple[int, int]]:
    """Return the statements of each path, and the buffers that they touch."""
    app = declare_application(Realm())
    found = {}
    async with ExplainedBus(dsn, app.topology, app.kinds) as explained:

        def wrap(_bus: Bus, _operations: Operations) -> tuple[Bus, Operations]:
            return explained, PostgresOperations(explained)

        async with serving(BACKENDS["postgres"](dsn), folder, wrap=wrap) as site:
            program = site.bearing(await site.token("ci"))
            for path in PATHS:
                await program.get(path.replace("{run}", run))
                explained.plans.clear()
                reply = await program.get(path.replace("{run}", run))
                assert reply.status == 200, reply.text
                found[path] = len(explained.plans), sum(plan.buffers for plan in explained.plans)
    return found


@pytest.mark.parametrize("many", [3 * FEW, pytest.param(MANY, marks=pytest.mark.long)])
async def test_a_request_costs_the_same_however_many_runs_there_are(dsn: str, tmp_path: Path, many: int) -> None:
    run = fill(dsn, FEW)
    await store_copied_run(dsn, FEW)
    few = await costs(dsn, tmp_path, run)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM kingdom.record WHERE kind IN ('workflow', 'web-token')")
        connection.execute("TRUNCATE kingdom.run_text")
    run = fill(dsn, many)
    await store_copied_run(dsn, many)
    more = await costs(dsn, tmp_path, run)
    for path in PATHS:
        statements, buffers = few[path]
        assert statements <= STATEMENTS_MAX.get(path, 12), (path, few[path])
        assert more[path][0] == statements, (path, few[path], more[path])
        if path not in STATEMENTS_MAX:
            # A deeper index costs a few buffers more, and a scan of all runs thousands.
            assert more[path][1] <= 2 * buffers + 400, (path, few[path], more[path])


async def test_a_download_of_changes_says_that_a_diff_is_cut(dsn: str, tmp_path: Path) -> None:
    await store_copied_run(dsn, 1)
    async with serving(BACKENDS["postgres"](dsn), tmp_path) as site:
        texts, diff = site.context.texts, b'{"since": "a", "until": "b"}\ndiff --git a/x b/x\n+half a li'
        assert texts
        async with site.bus.transaction() as transaction:
            record, run = await load_workflow(transaction, COPIED_RUN)
            run.checkpoints[0] = msgspec.structs.replace(run.checkpoints[0], commits={"tree": "b", "second": "b"})
            run.work_trees.append(msgspec.structs.replace(run.work_trees[0], id="second"))
            await transaction.put(record.replace(doc=run.document()))
        await texts.append(COPIED_RUN, f"diff/{POINT}/second/base", [TextPiece(start=0, content=diff, is_cut=True)])
        cookie = await site.signs_in("anna")
        reply = await site.get(f"/runs/{COPIED_RUN}/changes.diff", Cookie=cookie)
    assert reply.text.splitlines() == [
        f"# app: as of checkpoint {POINT}",
        "+x",
        f"# app: as of checkpoint {POINT}; cut after 1 MiB, the rest is on the host of the run",
        "diff --git a/x b/x",
        "+half a li",
    ]


async def test_pages_of_runs_are_complete_and_the_newest_run_comes_first(dsn: str, tmp_path: Path) -> None:
    fill(dsn, 250)
    async with serving(BACKENDS["postgres"](dsn), tmp_path) as site:
        program = site.bearing(await site.token("ci"))
        seen: list[dict[str, str]] = []
        for query in ("limit=60", "limit=60&status=RUNNING&status=COMPLETED"):
            seen, after = [], ""
            while after is not None:
                page = (await program.get(f"/api/v1/runs?{query}&after={after}")).document
                assert len(page["items"]) <= 60
                seen += page["items"]
                after = page["next"]
            assert len({run["id"] for run in seen}) == len(seen) == 250
        times = [run["createdAt"] for run in seen]
        assert times[0] == max(times)
        running = (await program.get("/api/v1/runs?status=RUNNING&limit=200")).document["items"]
        assert {run["status"] for run in running} == {"RUNNING"}
        assert len(running) == 25
        assert (await program.get("/api/v1/runs?after=nonsense")).status == 400
