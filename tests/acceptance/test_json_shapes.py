"""Every command is run with --json; its output matches its declaration, and so the reference."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import typer
import yaml

from kingdom.bootstrap import open_bus
from kingdom.cli.framework.json_result import json_result_of
from kingdom.cli.setup import doctor as cli_doctor
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.followups.records import Followup, follow_pull_request
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.records import save_petition
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.court.records import save
from kingdom.errors import Misconfigured
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.soldiers.sandbox.egress_ledger import EgressLedger, EgressLimits
from kingdom.soldiers.workplace.host_folders import HostFolders
from tests.acceptance import limits
from tests.acceptance.json_commands import COMMANDS, JsonCommands
from tests.acceptance.runs import HOST, script, write
from tests.acceptance.terminal import ROOT, SHOP, Terminal, eventually

TASK = "task-20260207-001"
BUS = frozenset({"bus", "storage"})
COURT = frozenset(
    {
        *(
            "init",
            "doctor",
            "config",
            "github",
            "general",
            "event",
            "why",
            "explain",
            "simulate",
            "status",
            "inbox",
            "answer",
            "cost",
        ),
        *("assignment", "petition", "followup", "show", "role", "up", "completion"),
    }
)
# The demo takes long; its own test checks the shape of its output.
ELSEWHERE = frozenset({"demo"})
# `agent-mcp` serves an agent, and `top` needs a screen.
WITHOUT = frozenset({"agent-mcp", "top"})
WEB = frozenset({"web"})
RUNS = frozenset({"git", "mcp", "template", "workflow", "logs", "attach", "host", "ps"})
SERVE = f"{sys.executable} {ROOT / 'tests' / 'integration' / 'soldiers' / 'mcp_server.py'} stdio"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonCommands:
    """Commands in an empty directory with a store of files."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KINGDOM_DATABASE_URL", f"file:{tmp_path / 'realm'}")
    monkeypatch.setenv("KINGDOM_ACTOR", "tester")
    return JsonCommands()


def of_nouns(nouns: frozenset[str]) -> set[str]:
    return {name for name in COMMANDS if name.split()[0] in nouns}


def repository(place: Path) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@localhost")
    place.mkdir()
    for words in (("init", "-b", "main"), (*identity, "commit", "--allow-empty", "-m", "Begin")):
        subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True)
    return str(place)


def template(name: str, *works: dict[str, Any]) -> str:
    return yaml.safe_dump({"name": name, "gitRefs": ["app"], "works": list(works)})


def test_commands_about_runs(commands: JsonCommands, tmp_path: Path) -> None:
    commands.run_json("bus migrate")
    for name in ("git list", "mcp list", "template list", "workflow list", "host list", "ps"):
        assert commands.run_json(name) == []
    commands.run_json("git create", "app", repository(tmp_path / "app"))
    assert commands.run_json("mcp create", "shelf", "--command", SERVE)["tools"]
    assert commands.run_json("mcp create", "far", "--url", "https://example.invalid/mcp", "--no-check")["tools"] is None
    assert len(commands.run_json("mcp list")) == 2
    assert commands.run_json("mcp show", "shelf")["tools"] is None
    commands.run_json("mcp delete", "far")

    prompt_script = script(write("a.txt", "hello"), {"report": "# Result\n\nAll is well."}, {"cost": 0.25})
    builds = {"name": "build", "tasks": [{"query": prompt_script, "reportOutline": [{"title": "Result"}]}]}
    asks = {"name": "ask", "tasks": [script({"ask": "Go on?", "choices": ["yes", "no"]}, write("b.txt", "bye"))]}
    (tmp_path / "story.yaml").write_text(template("Story", builds, asks))
    commands.run_json("template validate", "story.yaml")
    commands.run_json("template create", "story.yaml")
    commands.run_json("template update", "story", "-", text=template("Story", builds, asks))
    commands.run_json("template show", "story")
    assert len(commands.run_json("template list")) == 1
    assert commands.run_json("template schema")["$defs"]
    assert commands.run_json("git show", "app")["users"]["templates"] == ["story"]

    terminal = Terminal(tmp_path, f"file:{tmp_path / 'realm'}")
    with terminal.start("role", "engine", "--host", "--name", HOST, "--json") as engine:
        engine.logs("host registered")
        _story_of_a_run(commands, tmp_path)
        _end_of_a_run(commands)
        commands.end("role", engine)
    with terminal.start("role", "host", "--name", "other", "--json-logs") as host:
        host.logs("host registered")
        commands.end("role", host)
    assert len(commands.run_json("host list")) == 2
    assert commands.run_json("host drain", "other")["drained"]
    assert not commands.run_json("host undrain", "other")["drained"]
    assert commands.run_json("host retire", "other", "--yes")["status"] == "LOST"
    commands.run_json("template delete", "story")
    commands.run_json("git delete", "app")
    assert commands.ran >= of_nouns(RUNS)


def _story_of_a_run(commands: JsonCommands, directory: Path) -> None:
    run = commands.run_json("workflow create", "story")["id"]
    assert [point["id"] for point in commands.run_json("workflow checkpoints", run)] == []
    definition = commands.run_json("workflow definition", run)
    (directory / "run.yaml").write_text(yaml.safe_dump(definition))
    commands.run_json("workflow modify", run, "run.yaml")
    assert commands.run_json("workflow prepare", run, "--wait")["status"] == "READY"
    assert commands.run_json("workflow start", run, "--wait", code=4)["question"]["text"] == "Go on?"
    assert [entry["kind"] for entry in commands.run_json("ps")] == ["run"]
    assert commands.run_json("workflow resume", run, "--reply", "yes", "--wait")["status"] == "COMPLETED"
    assert commands.run_json("workflow wait", run)["status"] == "COMPLETED"
    host = commands.run_json("workflow show", run)["host"]
    assert host["id"] == HOST
    EgressLedger(HostFolders(Path(host["directory"])).egress_log(run), EgressLimits()).record(
        "refused", "a.example.org", "why"
    )
    (attempt,) = commands.run_json("workflow egress", run)
    assert (attempt["host"], attempt["outcome"], attempt["reason"]) == ("a.example.org", "refused", "why")
    assert len(commands.run_json("workflow checkpoints", run)) == 2
    (report,) = commands.run_json("workflow report", run)
    assert report["workName"] == "build"
    (difference,) = commands.run_json("workflow diff", run)
    assert "+hello" in difference["diff"]
    assert len(commands.run_json("workflow list")) == 1
    assert len(commands.run_json_lines("workflow logs", run)) > 10
    entries = commands.run_json_lines("logs", run)
    assert {line["workId"] for line in entries} == {f"{run}-w1", f"{run}-w2"}
    assert commands.run_json_lines("attach", run) == entries
    commands.run_json("template from-workflow", run, "Again")
    commands.run_json("workflow release", run)


def _end_of_a_run(commands: JsonCommands) -> None:
    waits = {"name": "wait", "tasks": [script({"wait_for": "app/go"})]}
    commands.run_json("template create", "-", text=template("Waits", waits))
    run = commands.run_json("workflow create", "waits", "--start")["id"]
    eventually(lambda: commands.run_json("workflow show", run)["workflow"]["status"] == "RUNNING" and run)
    assert commands.run_json("workflow pause", run, "--wait")["status"] == "PAUSED"
    assert commands.run_json("workflow cancel", run, "--wait")["status"] == "CANCELLED"
    commands.run_json("workflow delete", run)


@contextmanager
def _pinned(dsn: str) -> Iterator[None]:
    """Hold a transaction open, which keeps old rows from being removed."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield


def test_commands_about_the_bus(
    commands: JsonCommands, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("--database-url", dsn)
    shop = (*there, "--app", SHOP)
    migrated = commands.run_json("bus migrate", *there, "--schema", "elsewhere")
    assert migrated["migrations"]
    for name in ("bus stats", "bus throughput", "bus pins", "bus dead list"):
        assert commands.run_json(name, *there) == []
    assert commands.run_json_lines("bus tail", *there) == []

    order = ("--type", "OrderPlaced", "--payload")
    ((bad,), (again,), (waiting,)) = (
        commands.run_json_lines("bus publish", *shop, *order, payload)
        for payload in ('{"fail": "no"}', '{"fail": "nor"}', "{}")
    )
    assert [line["streams"] for line in (bad, again, waiting)] == [["orders"]] * 3
    (tmp_path / "events.ndjson").write_text('{"type": "LineAdded"}\n{"type": "Nothing"}\n')
    assert len(commands.run_json_lines("bus publish", *shop, "--file", "events.ndjson", code=1)) == 2
    assert len(commands.run_json("bus stats", *there)) == 2
    (why,) = commands.run_json("bus why", waiting["eventId"], *there)
    assert why["status"] == "PENDING"
    commands.run_json("bus cancel", waiting["eventId"], "--stream", "orders", *there)
    with Terminal(tmp_path, dsn).worker("--stream", "orders") as worker:
        eventually(lambda: len(commands.run_json("bus dead list", *there)) == 3 and "all")
        commands.end("bus work", worker)
    commands.run_json("bus dead patch", bad["eventId"], "--payload", "{}", *there)
    (letter,) = commands.run_json("bus dead show", bad["eventId"], *there)
    assert letter["history"]
    assert commands.run_json("bus redrive", "--all", "--dry-run", *there)["matching"] == 3
    assert commands.run_json("bus redrive", bad["eventId"], "--stop-after", "0", *there)["redriven"] == 1
    assert commands.run_json("bus redrive", "--all", "--yes", "--limit", "1", "--stop-after", "0", *there)["events"]
    left = commands.run_json("bus dead list", *there)[0]["eventId"]
    assert commands.run_json("bus dead discard", left, "--reason", "a test", "--yes", *there)["discarded"]
    commands.run_json("bus pause", "orders", "--reason", "a look", *there)
    assert [row["paused"] for row in commands.run_json("bus stats", *there)] == [None, "a look"]
    commands.run_json("bus resume", "orders", *there)
    assert commands.run_json("bus resume", "orders", *there, code=1)["wasPaused"] is False
    assert commands.run_json("bus retain", *there)["recordsRemoved"] == 0
    assert len(commands.run_json_lines("bus tail", *there)) > 3
    assert commands.run_json("storage export", "house.jsonl.gz", *there)["exported"]["logEntries"]
    commands.run_json("storage import", "house.jsonl.gz", *there, "--schema", "elsewhere")
    monkeypatch.setattr("kingdom.backends.postgres.operations._PIN_SECONDS", 0.0)
    with _pinned(dsn):
        assert commands.run_json("bus pins", *there)
    # A verification takes long, so test_cli_verify checks the shape of its output.
    assert commands.ran >= of_nouns(BUS) - {"bus verify"}


def test_commands_about_the_court(commands: JsonCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, unhurried in limits.unhurried_doctor().items():
        monkeypatch.setattr(cli_doctor, name, unhurried)
    assert commands.run_json("init", "--yes")["general"] == "gen-hello"
    assert commands.run_json("init")["made"] == []
    assert commands.run_json("doctor", "--offline")["ok"]
    commands.run_json("config check")
    assert commands.run_json("config example")["text"]
    manifest = commands.run_json("github manifest", "https://kingdom.example/hook")
    assert manifest["default_permissions"]["issues"] == "write"
    assert commands.run_json("config schema")["$defs"]
    assert commands.run_json("completion", "bash")["text"]
    _generals(commands)
    commands.run_json("bus migrate")
    for name in ("event list", "inbox", "petition list", "assignment list", "followup list"):
        assert commands.run_json(name) == []
    assert commands.run_json("simulate")["differences"] == []
    asyncio.run(_store_items_of_the_court(tmp_path / "realm"))
    event = _event(commands, tmp_path)
    assert commands.run_json("status", code=1)["troubles"]
    assert commands.run_json("cost", "--days", "400")["usd"] == 0

    questions = commands.run_json("inbox")
    assert sorted("petition_id" in question for question in questions) == [False, True]
    assert commands.run_json("answer", TASK, "yes")["question"] == "May I?"
    (performed, waiting) = commands.run_json("petition list")
    assert (performed["url"], waiting["ended_at"]) == ("https://example.invalid/1", None)
    (followed,) = commands.run_json("followup list")
    assert (followed["id"], followed["state"], followed["task_id"]) == ("acme/app#7", "open", TASK)
    assert commands.run_json("followup show", "Acme/App#7") == followed | {"poll_problem": ""}
    assert commands.run_json("followup stop", "acme/app#7", "--reason", "done")["state"] == "ended"
    (assignment,) = commands.run_json("assignment list")
    shown = {
        assignment["id"]: commands.run_json("assignment show", assignment["id"]),
        event: commands.run_json("event show", event),
        performed["id"]: commands.run_json("petition show", performed["id"]),
        "gen-hello": commands.run_json("general show", "gen-hello"),
    }
    assert {thing: commands.run_json("show", thing) for thing in shown} == shown
    assert commands.run_json("explain", TASK)["strands"]
    with Terminal(tmp_path, f"file:{tmp_path / 'realm'}").start(
        "up", "--config", str(tmp_path / "kingdom.yaml"), "--role", "envoy", "--json"
    ) as up:
        up.logs("role started")
        commands.end("up", up)
    assert commands.ran >= of_nouns(COURT)


def _generals(commands: JsonCommands) -> None:
    assert commands.run_json("general list", "--directory", "nowhere")["generals"] == []
    commands.run_json("general install", "gen-pr")
    made = commands.run_json("general create", "docs")
    (Path(made["directory"]) / "prompts" / "task.md").unlink()
    assert [broken["name"] for broken in commands.run_json("general list")["broken"]] == ["gen-docs"]
    assert commands.run_json("general validate", code=1)["generals"]
    assert commands.run_json("general preview", "gen-hello")["missing"]
    assert commands.run_json("general schema")["$defs"]
    learned = Path(commands.run_json("general show", "gen-hello")["directory"]) / "memory" / "elsewhere.md"
    learned.parent.mkdir(exist_ok=True)
    learned.write_text("- Mornings are busy. [patterns of no repository, wf-1, 2026-02-07]\n")
    assert commands.run_json("general memory", "gen-hello")
    assert commands.run_json("general promote", "gen-hello", "mornings")["everywhere"] is False


def _event(commands: JsonCommands, directory: Path) -> str:
    """Let the King decide about an event without subscribers, and return its id."""
    event: str = commands.run_json("event send", "--type", "demo.nothing", "--payload", '{"title": "Nothing"}')["id"]
    with Terminal(directory, f"file:{directory / 'realm'}").start(
        "role", "king", "--config", str(directory / "kingdom.yaml"), "--metrics-port", "0", "--json"
    ) as king:
        eventually(lambda: commands.run_json("event show", event).get("outcome") == "unrouted" and event)
        (served,) = king.logs("metrics served")
        counted = 'kingdom_outbox_processed_total{result="done",stream="court.event"} 1.0'
        assert eventually(lambda: counted in httpx.get(served["address"]).text and counted)
        commands.end("role", king)
    assert commands.run_json("why", event)["considered"]
    assert commands.run_json("explain", event)["event"]["outcome"] == "unrouted"
    assert len(commands.run_json("event list")) == 1
    assert commands.run_json("simulate")["unchanged"] == 1
    assert commands.run_json("event reroute", event)["status"] == "pending"
    return event


async def _store_items_of_the_court(realm: Path) -> None:
    """Create an assignment with a question, a performed petition, and one that waits for a person."""
    now = utc_now()
    application = declare_application(Realm())
    whose: dict[str, Any] = {"general": "gen-pr", "workflow_id": f"wf-{TASK}"}
    assignment = Assignment(
        id=TASK,
        event_id="evt-cli-0",
        target_general="gen-pr",
        type="demo.review",
        payload={"number": 7},
        priority=Priority.LOW,
        created_at=now,
        status=AssignmentStatus.NEEDS_HUMAN,
    )
    asked: dict[str, Any] = {**whose, "asked_at": now, "due_at": now + timedelta(days=1)}
    comment: dict[str, Any] = {**whose, "root": TASK, "kind": "github.comment", "target": "acme/app#1"}
    done: dict[str, Any] = {
        "state": PetitionState.PERFORMED,
        "ended_at": now,
        "response": {"url": "https://example.invalid/1"},
    }
    async with (
        open_bus(f"file:{realm}", application.topology, application.kinds) as bus,
        bus.transaction() as transaction,
    ):
        await save(transaction, assignment)
        await save_question(transaction, HumanQuestion(id=TASK, assignment_id=TASK, text="May I?", **asked))
        approve = HumanQuestion(id="petition-2", assignment_id=TASK, text="Say it?", petition="petition-2", **asked)
        await save_question(transaction, approve)
        waits: dict[str, Any] = {"approve_by": now + timedelta(days=1)}
        for number, more in enumerate((done, waits), start=1):
            petition = Petition(
                id=f"petition-{number}", number=number, body={"body": "Hello."}, created_at=now, **comment, **more
            )
            await save_petition(transaction, petition, None)
        commits = {"branch": "kingdom/it", "base": "main", "head": "c0ffee" + "0" * 34}
        times = {"created_at": now, "ends_at": now + timedelta(days=14)}
        pull: dict[str, Any] = {"id": "acme/app#7", "repo": "acme/app", "number": 7, **commits, **times}
        # The King would end it if a General without the section follow had opened it.
        follower = {**whose, "general": "gen-shop"}
        await follow_pull_request(transaction, Followup(assignment_id=TASK, **pull, **follower))


def test_commands_about_the_web(commands: JsonCommands) -> None:
    commands.run_json("bus migrate")
    assert commands.run_json("web token list") == commands.run_json("web sessions list") == []
    commands.run_json("web token create", "ci", "--may", "look")
    assert [each["name"] for each in commands.run_json("web token list")] == ["ci"]
    assert [each["name"] for each in commands.run_json("web token revoke", "ci")] == ["ci"]
    commands.run_json("web invite", "ann", "--may", "look,answer")
    # The others need a browser or a signed-in person, or run until they are stopped.
    assert commands.ran >= of_nouns(WEB) - {"web open", "web run", "web sessions revoke"}


def test_every_command_is_run_by_a_test_or_has_no_json() -> None:
    names = {name.split()[0] for name in COMMANDS}
    assert names == BUS | COURT | RUNS | WEB | ELSEWHERE | WITHOUT
    assert {name for name in COMMANDS if json_result_of(COMMANDS[name].callback) is None} == of_nouns(WITHOUT)
    with pytest.raises(Misconfigured):
        COMMANDS["top"].main(args=["--json"], standalone_mode=False)
    with pytest.raises(typer.TyperException):
        COMMANDS["agent-mcp"].main(args=["--json"], standalone_mode=False)
