"""Runs on two hosts, read on a third machine that has the directory of neither."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kingdom.access.rights import Right
from kingdom.bootstrap import open_bus
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import HOSTS
from tests.acceptance.runs import Runs, script, write
from tests.acceptance.terminal import Terminal, eventually
from tests.contract.backends import BACKENDS
from tests.integration.web.site import serving

EAST, WEST = "east", "west"


async def move_to_other_machine(store: str) -> None:
    """Make each host appear as another machine."""
    application = engine()
    async with open_bus(store, application.topology, application.kinds) as bus, bus.transaction() as transaction:
        for name in (EAST, WEST):
            record = await transaction.get(HOSTS.name, name)
            assert record is not None
            await transaction.put(record.replace(doc={**record.doc, "machine": f"machine-{name}"}))


@contextlib.contextmanager
def two_hosts(runs: Runs, store: str) -> Iterator[None]:
    start = runs.terminal.start
    with contextlib.ExitStack() as stack:
        stack.enter_context(start("role", "engine", "--json-logs"))
        for name in (EAST, WEST):
            folder = str(runs.directory / name)
            host = start("role", "host", "--json-logs", "--slots", "1", "--name", name, "--directory", folder)
            stack.enter_context(host).logs("host registered")
        asyncio.run(move_to_other_machine(store))
        yield


def host_of(runs: Runs, workflow_id: str) -> str:
    def placed() -> str:
        placement = runs.run_json("show", workflow_id)["workflow"]["placement"]
        return placement["host"] if placement else ""

    return eventually(placed)


def wait_until_busy(runs: Runs, count: int) -> None:
    def busy() -> bool | str:
        return sum(host["busy"] for host in runs.terminal.run_json("host", "list")) == count and "busy"

    eventually(busy)


def entries_in_file(runs: Runs, host: str, workflow_id: str) -> list[dict[str, Any]]:
    """Return the transcripts of a run on its hosts, in the order of its Works."""
    works = runs.run_json("show", workflow_id)["workflow"]["works"]
    soldiers = [work["agent"]["session"].partition("/")[0] for work in works]
    return [
        entry
        for soldier in soldiers
        for entry in read_entries(runs.directory / host / "logs" / "sessions" / f"{soldier}.json")
    ]


@pytest.fixture
def runs(terminal: Terminal, tmp_path: Path) -> Runs:
    runs = Runs(terminal, tmp_path)
    waits = script({"say": "I wait"}, {"wait_for": "app/go"}, write("a.txt", "hello"), {"answer": "I went"})
    after = script({"say": f"long {'x' * 200_000}"}, write("b.txt", "again"), {"answer": "done"})
    runs.template("Far", {"name": "first", "tasks": [waits]}, {"name": "second", "tasks": [after]})
    return runs


def test_runs_on_other_machines_are_followed_and_read_in_full(runs: Runs, dsn: str) -> None:
    with two_hosts(runs, dsn):
        hosts = {}
        for count in (1, 2):
            workflow_id = runs.run_json("create", "far", "--start")["id"]
            hosts[workflow_id] = host_of(runs, workflow_id)
            # A host that has not reported yet that it is busy could get the next run, too.
            wait_until_busy(runs, count)
        ids = list(hosts)
        assert set(hosts.values()) == {EAST, WEST}
        with runs.terminal.start("logs", ids[0], "-f", "--all") as looking:
            eventually(lambda: any("said      I wait" in line for line in looking.printed_lines()) and "seen")
            for workflow_id, host in hosts.items():
                (runs.directory / host / "runs" / workflow_id / "trees" / f"{workflow_id}-tree1" / "go").touch()
            assert looking.ends() == 0
            output = "\n".join(looking.printed_lines())
            assert output.index("answered  I went") < output.index("── w2 second") < output.index("answered  done")
        for workflow_id in ids:
            runs.reaches(workflow_id, "COMPLETED")
    for workflow_id, host in hosts.items():
        written = entries_in_file(runs, host, workflow_id)
        # A reader cannot open the files of the host, although it runs on the same machine.
        (runs.directory / host).rename(runs.directory / f"{host}-away")
        check_that_everything_is_readable(runs, workflow_id, host, written)
        asyncio.run(check_that_everything_is_readable_over_the_web(dsn, runs.directory, workflow_id, written))


def check_that_everything_is_readable(runs: Runs, workflow_id: str, host: str, written: list[dict[str, Any]]) -> None:
    read = runs.terminal.run("logs", workflow_id, "--all", "--json")
    assert (read.code, read.err) == (0, "")
    assert [line["entry"] for line in read.documents] == written
    middle = read.documents[-3]
    rest = runs.terminal.run("logs", workflow_id, "--since-offset", str(middle["nextOffset"]), "--json")
    assert rest.documents == read.documents[-2:]

    diff = runs.run("diff", workflow_id)
    assert diff.code == 0, diff.err
    assert "+hello" in diff.out
    assert "+again" in diff.out
    assert f"as of checkpoint {workflow_id}-w2-c1" in diff.err
    (since,) = runs.run_json("diff", workflow_id, "--since", "w1-c1")
    assert "+again" in since["diff"]
    assert "+hello" not in since["diff"]
    shown = runs.run_json("show", workflow_id)["workflow"]
    assert [since["since"], since["until"]] == [next(iter(each["commits"].values())) for each in shown["checkpoints"]]

    story = runs.terminal.run_json("explain", workflow_id)
    assert story["status"] == "COMPLETED"
    works = [moment["work_id"] for moment in story["moments"] if moment["work_id"]]
    assert {f"{workflow_id}-w1", f"{workflow_id}-w2"} <= set(works)
    assert host in str(story)


async def check_that_everything_is_readable_over_the_web(
    store: str, folder: Path, workflow_id: str, written: list[dict[str, Any]]
) -> None:
    async with serving(BACKENDS["postgres"](store), folder) as site:
        program = site.bearing(await site.token(f"reader-{workflow_id}", Right.LOOK))
        path = f"/api/v1/runs/{workflow_id}"
        first = (await program.get(f"{path}/transcript")).document
        entries, parts = [], 0
        for soldier in first["soldiers"]:
            after: int | None = 0
            while after is not None:
                part = (await program.get(f"{path}/transcript?soldier={soldier}&after={after}")).document
                entries += [line["entry"] for line in part["items"]]
                after, parts = part["next"], parts + 1
        assert entries == written
        assert parts > len(first["soldiers"])
        assert (first["soldier"], first["notes"]) == (first["soldiers"][-1], [])
        assert (await program.get(f"{path}/transcript?after=5")).status == 400
        assert (await program.get(f"{path}/transcript?soldier=soldier-unknown")).status == 404

        (whole,) = (await program.get(f"{path}/diff")).document["items"]
        assert "+hello" in whole["diff"]
        assert "+again" in whole["diff"]
        points = [each["id"] for each in (await program.get(f"{path}/checkpoints")).document["items"]]
        (since,) = (await program.get(f"{path}/diff?since={points[0]}")).document["items"]
        (last,) = (await program.get(f"{path}/checkpoints/{points[-1]}/diff")).document["items"]
        (base,) = (await program.get(f"{path}/checkpoints/{points[-1]}/diff?since=base")).document["items"]
        assert (since["diff"], base["diff"]) == (last["diff"], whole["diff"])
        assert "+hello" not in last["diff"]
