import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kingdom.bootstrap import open_bus
from kingdom.soldiers.agents.transcript import append_entry
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import HOSTS
from tests.acceptance.runs import HOST, Runs, script, write
from tests.acceptance.terminal import Done, Terminal, eventually


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    directory = tmp_path_factory.mktemp("runs")
    runs = Runs(Terminal(directory, f"file:{directory / 'realm'}"), directory)
    with runs.engine():
        yield runs


def logs(runs: Runs, *words: str) -> Done:
    return runs.terminal.run("logs", *words)


def soldier(runs: Runs, workflow_id: str, work: int = 0) -> str:
    token: str = runs.run_json("show", workflow_id)["workflow"]["works"][work]["agent"]["session"]
    return token.partition("/")[0]


def test_the_logs_of_a_run_show_all_its_sessions_in_order(runs: Runs) -> None:
    talk = script({"say": "I look around"}, {"run": "echo seen"}, {"cost": 0.25}, {"answer": "understood"})
    runs.template(
        "Talk", {"name": "look", "tasks": [talk]}, {"name": "write", "tasks": [script(write("a.txt", "hello"))]}
    )
    workflow_id = runs.run_json("create", "talk", "--start", "--wait")["id"]
    result = logs(runs, workflow_id, "-f")
    assert result.code == 0
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in result.out.splitlines()]
    first, second = soldier(runs, workflow_id), soldier(runs, workflow_id, 1)
    assert f"── w1 look · {first} on {HOST} ──" in lines
    assert lines.index(f"── w2 write · {second} on {HOST} ──") > lines.index("answered  understood ($0.25)")
    assert lines.index("said      I look around") < lines.index("tool      run  echo seen")
    assert "seen" in [line.strip() for line in lines]
    assert "tool      write  app/a.txt" in lines

    only = logs(runs, f"{workflow_id}-w2").out
    assert second in only
    assert first not in only
    assert logs(runs, second).out == only


def test_a_program_continues_reading_at_the_offset_where_it_stopped(runs: Runs) -> None:
    runs.template("Read", {"name": "read", "tasks": [script({"say": "one"}, {"say": "two"})]})
    workflow_id = runs.run_json("create", "read", "--start", "--wait")["id"]
    every = logs(runs, workflow_id, "--json").documents
    assert {each["workId"] for each in every} == {f"{workflow_id}-w1"}
    middle = every[2]["nextOffset"]
    assert logs(runs, workflow_id, "--since-offset", str(middle), "--json").documents == every[3:]
    assert logs(runs, workflow_id, "--since-offset", str(every[-1]["nextOffset"]), "--json").out == ""


def test_following_shows_a_run_live_and_ends_when_the_run_ends(runs: Runs) -> None:
    waits = script({"say": "I wait"}, {"wait_for": "app/go"}, {"answer": "I went"})
    runs.template("Wait", {"name": "wait", "tasks": [waits]}, {"name": "after", "tasks": [script({"say": "after"})]})
    workflow_id = runs.run_json("create", "wait", "--start")["id"]
    with runs.terminal.start("logs", workflow_id, "-f") as looking:
        eventually(lambda: any("said      I wait" in line for line in looking.printed_lines()) and "seen")
        assert looking.process.poll() is None
        (runs.tree(workflow_id) / "go").touch()
        assert looking.ends() == 0
        output = "\n".join(looking.printed_lines())
        assert output.index("answered  I went") < output.index("── w2 after") < output.index("said      after")


def test_only_the_end_of_a_long_transcript_is_shown(runs: Runs) -> None:
    runs.template("Long", {"name": "long", "tasks": [script({"say": "begins"})]})
    workflow_id = runs.run_json("create", "long", "--start", "--wait")["id"]
    path = runs.host_directory / "logs" / "sessions" / f"{soldier(runs, workflow_id)}.json"
    for number in range(5000):
        append_entry(path, {"type": "said", "prompt": f"{number}", "text": f"{number} {'x' * 100}"}, durable=False)
    tail = logs(runs, workflow_id)
    assert "begins" not in tail.out
    assert "4999 xxx" in tail.out
    assert len(tail.out) < 300_000
    assert "are left out: add --all" in tail.err
    assert "begins" in logs(runs, workflow_id, "--all").out


def test_a_transcript_on_another_machine_is_shown_from_the_store(tmp_path: Path) -> None:
    store = f"file:{tmp_path / 'realm'}"
    runs = Runs(Terminal(tmp_path, store), tmp_path)
    asks = script({"petition": "jira.comment", "body": {"text": "hello"}}, {"answer": "from afar"})
    runs.template("Far", {"name": "far", "tasks": [asks]})
    with runs.engine():
        workflow_id = runs.run_json("create", "far", "--start", "--wait")["id"]
    asyncio.run(move_to_other_machine(store))
    result = logs(runs, workflow_id)
    assert f"the transcript is on host {HOST}, machine elsewhere, in {runs.host_directory}" in result.err
    assert "asked     Follow the script." in result.out
    assert "petition  jira.comment  text: hello" in result.out
    assert "answered  from afar" in result.out
    assert {each["nextOffset"] for each in logs(runs, workflow_id, "--json").documents} == {None}


async def move_to_other_machine(store: str) -> None:
    """Make the host appear as another machine."""
    application = engine()
    async with open_bus(store, application.topology, application.kinds) as bus, bus.transaction() as transaction:
        record = await transaction.get(HOSTS.name, HOST)
        assert record is not None
        await transaction.put(record.replace(doc={**record.doc, "machine": "elsewhere"}))


def test_a_missing_item_is_reported(runs: Runs) -> None:
    for name in ("nothing", "soldier-1-1", "nothing-w1"):
        missing = logs(runs, name)
        assert missing.code == 1
        assert name.removesuffix("-w1") in missing.err
