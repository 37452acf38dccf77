"""The command line as a whole: how quickly it answers, how it reacts to a typing error, and what it shows."""

import asyncio
import io
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.bootstrap import open_bus
from kingdom.bus.record import Record
from kingdom.cli.nouns import ALIASES, NOUNS, WORDS
from kingdom.clock import utc_now
from kingdom.court.petitions.decision import PETITIONS, Petition
from kingdom.court.petitions.records import save_petition
from kingdom.court.questions import QUESTIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow.records import ACTIVE, GITS, MCP_SERVERS, TEMPLATES, WORKFLOWS
from tests.acceptance.sample_store import AGAIN, ENDED, PETITION, TASK, InProcessCli, SampleStore, add_question
from tests.acceptance.terminal import CTRL_C, Terminal
from tests.patience import PATIENCE_SECONDS

ROUNDS = 7
AT_MOST = 5
KINGDOM = [str(Path(sys.executable).with_name("kingdom"))]
ESCAPE = "\x1b"


def seconds(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - begun


@pytest.mark.timing
def test_help_takes_at_most_five_times_as_long_as_a_program_that_does_nothing() -> None:
    nothing = (sys.executable, "-c", "pass")
    asked = ((*KINGDOM, "--help"), tuple(KINGDOM), (*KINGDOM, "--complete", "wo"))
    best = dict.fromkeys((nothing, *asked), float("inf"))
    for _ in range(ROUNDS):
        for command in best:
            best[command] = min(best[command], seconds(command))
    assert {
        command: round(best[command] / best[nothing], 1) for command in asked if best[command] > AT_MOST * best[nothing]
    } == {}


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("--help",), ("typer", "rich", "asyncio", "msgspec", "kingdom.bus", "kingdom.errors")),
        (
            ("status", "--help"),
            ("aiohttp", "psycopg", "watchfiles", "kingdom.backends.files", "kingdom.cli.general"),
        ),
        (("--complete", "show", "evt"), ("aiohttp", "psycopg")),
    ],
)
def test_modules_that_a_command_does_not_need_are_not_loaded(words: tuple[str, ...], unneeded: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kingdom", *words], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kingdom.cli.nouns" in loaded
    assert loaded.isdisjoint(unneeded)


def test_garbage_collection_is_enabled_and_skips_loaded_modules() -> None:
    tell = "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count(), file=sys.stderr))"
    program = f"import atexit, gc, sys; {tell}; from kingdom.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "status", "--help"], capture_output=True, text=True, check=True
    )
    enabled, frozen = done.stderr.split()
    assert enabled == "True"
    assert int(frozen) > 10_000


def test_the_help_has_every_command_and_the_full_form_of_every_alias(cli: InProcessCli) -> None:
    page = cli("--help").out
    assert page == cli().out == cli("-h").out == cli("help").out
    assert set(WORDS) <= {line.split()[0] for line in page.splitlines() if line.startswith("  ")}
    for alias, words in ALIASES.items():
        assert f"(= {' '.join(words)})" in " ".join(page.split())
        result = cli(alias, "--help").out
        assert result.startswith(f"`kingdom {alias}` is short for `kingdom {' '.join(words)}`.\n")
        assert f"Usage: kingdom {' '.join(words)} [OPTIONS]" in result
    assert cli("help", "workflow", "show").out == cli("workflow", "show", "-h").out


def test_nouns_are_singular() -> None:
    # None of these words is the plural of a noun of the command line.
    assert {noun for noun in NOUNS if noun.endswith("s")} == {"status", "ps", "logs", "bus"}


@pytest.mark.parametrize(
    ("words", "cause", "step"),
    [
        (("workflw", "list"), "there is no command 'workflw'", "did you mean workflow?"),
        (("--jsn",), "there is no option --jsn", "`kingdom --help`"),
        (("workflow", "strat"), "kingdom workflow has no verb 'strat'", "did you mean start?"),
        (("bus", "dead", "lits"), "kingdom bus dead has no verb 'lits'", "did you mean list?"),
        (("petitions", "list"), "there is no command 'petitions'", "did you mean petition?"),
        (("inbox", "--jsno"), "kingdom inbox has no option --jsno", "did you mean --json?"),
        (("resume", "last", "--frm", "w1-c1"), "kingdom workflow resume has no option --frm", "--from"),
        (("show",), "ID is missing", "see `kingdom show --help`"),
        (("workflow", "list", "--limit", "few"), "--limit: ", "see `kingdom workflow list --help`"),
        (("workflow", "list", "--limit"), "--limit", "see `kingdom workflow list --help`"),
        (("role", "jester"), "jester", "king"),
        (("workflow", "create", "x", "--wait"), "--wait needs --start", "`kingdom workflow create"),
        (("completion", "tcsh"), "SHELL: ", "bash"),
        (("show", ""), "ID is empty", "`kingdom show --help`"),
        (("cancel", ""), "WORKFLOW is empty", "`kingdom workflow cancel --help`"),
        (("why", ""), "EVENT_ID is empty", "`kingdom why --help`"),
        (("answer", "", ""), "ASSIGNMENT is empty", "`kingdom answer --help`"),
        (("send", "demo.hello"), "'demo.hello' is not an event as JSON", "did you mean --type demo.hello?"),
    ],
)  # fmt: skip
def test_a_typing_error_is_reported_with_its_cause_and_the_next_step(
    cli: InProcessCli, words: tuple[str, ...], cause: str, step: str
) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("kingdom: ")
    assert done.err.count("\n") == 1
    assert cause in done.err
    assert step in done.err


def test_a_noun_without_a_verb_prints_its_help(cli: InProcessCli) -> None:
    done = cli("workflow")
    assert (done.code, "Usage: kingdom workflow [OPTIONS] COMMAND" in done.out) == (2, True)


def test_ps_shows_open_runs_and_assignments_and_each_run_below_its_assignment(
    cli_on_sample: InProcessCli, sample: SampleStore
) -> None:
    shown = [line.split()[:2] for line in cli_on_sample("ps").out.splitlines()]
    ids = [words[1] if words[0] == "└" else words[0] for words in shown if len(words) > 1]
    assert [each for each in ids if each.startswith(("task-", "wf-"))] == [sample.run, TASK, AGAIN, f"wf-{TASK}"]
    assert ["└", f"wf-{TASK}"] in shown
    assert ENDED in cli_on_sample("ps", "--all").out
    assert ENDED not in cli_on_sample("ps", "--all", "--limit", "1").out


def test_piped_output_has_no_escape_sequences(cli_on_sample: InProcessCli) -> None:
    for words in ((), ("workflow", "resume", "--help"), ("ps",), ("event", "list"), ("show", "last"), ("nonsense",)):
        done = cli_on_sample(*words)
        assert done.out + done.err
        assert ESCAPE not in done.out + done.err


def on_a_screen(*words: str, **environment: str) -> str:
    """Return the output on a terminal."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*KINGDOM, *words], stdout=theirs, stderr=theirs, stdin=theirs, env={**env, "TERM": "xterm", **environment}
    )
    os.close(theirs)
    screen = b""
    try:
        while part := os.read(ours, 4096):
            screen += part
    except OSError:
        # The last process has closed the terminal.
        pass
    finally:
        os.close(ours)
        process.wait()
    return screen.decode()


def test_colors_are_only_for_terminals_that_accept_them(sample: SampleStore) -> None:
    assert ESCAPE in on_a_screen("--help")
    assert ESCAPE not in on_a_screen("--help", NO_COLOR="1")
    assert ESCAPE not in on_a_screen("--help", TERM="dumb")
    table = ("ps", "--database-url", sample.url)
    assert ESCAPE in on_a_screen(*table)
    assert ESCAPE not in on_a_screen(*table, NO_COLOR="1")
    assert ESCAPE not in on_a_screen(*table, TERM="dumb")
    assert ESCAPE in on_a_screen("ps", "-h")
    assert ESCAPE not in on_a_screen("ps", "-h", NO_COLOR="1")


def test_characters_that_a_terminal_cannot_show_are_replaced(
    cli_on_sample: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli_on_sample("ps").code == 0
    screen.seek(0)
    assert f"wf-{TASK}" in screen.read()


def test_help_is_at_most_as_wide_as_the_variable_columns_says(
    cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    for words in (("--help",), ("ps", "-h")):
        assert max(map(len, cli(*words).out.splitlines())) <= 50
    assert "<bool>" not in cli("ps", "-h").out.replace("--help   -h      <bool>", "")


def test_watching_ends_when_its_output_is_closed(sample: SampleStore) -> None:
    process = subprocess.Popen(
        [*KINGDOM, "ps", "--watch", "--json", "--database-url", sample.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    with process.stderr:
        with process.stdout as pipe:
            assert len(json.loads(pipe.readline())) == 4
        try:
            assert process.wait(PATIENCE_SECONDS) == 1
        finally:
            process.kill()
            process.wait()
        assert process.stderr.read() == b""


def test_watching_shows_changes_and_ends_with_ctrl_c(
    sample: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "8")
    shutil.copytree(sample.realm, tmp_path / "realm")
    terminal = Terminal(tmp_path, f"file:{tmp_path / 'realm'}")
    with terminal.start("inbox", "--watch", "--json") as watching:
        assert [each["task_id"] for each in json.loads(watching.wait_for_lines(1)[0])] == [TASK]
        add_question(tmp_path / "realm")
        assert [each["task_id"] for each in json.loads(watching.wait_for_lines(2)[1])] == [TASK, AGAIN]
        watching.process.send_signal(2)
        assert watching.ends() == 130
        assert len(watching.printed_lines()) == 2
    done = terminal.converse("ps", "--watch", until="More:", answer=CTRL_C)
    assert (done.code, "Traceback" in done.out) == (130, False)
    # The newest row is last, and even a screen with few lines must show it.
    assert (f"wf-{TASK}" in done.out, sample.run in done.out, "2 older one(s)" in done.out) == (True, False, True)


def test_input_that_is_not_utf_8_is_refused_with_a_message(
    cli_on_sample: InProcessCli, sample: SampleStore, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for words in (
        ("workflow", "modify", sample.run, str(binary)),
        ("event", "send", f"@{binary}"),
        ("event", "send", "-"),
        ("bus", "publish", "--stream", "orders", "--type", "T", "--file", str(binary)),
    ):
        done = cli_on_sample(*words, text="\udcff")
        assert done.code == 2, done
        assert "is not UTF-8" in done.err


def test_a_list_reads_only_the_runs_that_it_shows(sample: SampleStore, cli: InProcessCli, tmp_path: Path) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    asyncio.run(make_unreadable(tmp_path / "realm", sample.run))
    (shown,) = cli("workflow", "list", "-n", "1", "--json").document
    assert shown["id"] == f"wf-{TASK}"
    assert [run["id"] for run in cli("workflow", "list", "--status", shown["status"], "--json").document] == [
        shown["id"]
    ]
    assert "There are no runs that match" in cli("workflow", "list", "--status", "PAUSED").out
    assert [each["id"] for each in cli("petition", "list", "-n", "1", "--json").document] == [PETITION]


def test_a_damaged_item_is_reported_and_hides_nothing_else(
    sample: SampleStore, cli: InProcessCli, tmp_path: Path
) -> None:
    shutil.copytree(sample.realm, tmp_path / "realm")
    asyncio.run(make_unreadable(tmp_path / "realm", sample.run))
    for noun, unreadable in (("workflow", "wf-x"), ("event", "evt-cli-x"), ("assignment", "task-x")):
        listed = cli(noun, "list", "--json")
        assert listed.code == 0
        assert listed.document
        assert f"{unreadable} is left out" in listed.err
        assert cli(noun, "show", "last").code == 0
        assert cli(noun, "show", unreadable).code == 1
    for words, left_out in (
        ("ps", {"wf-x", "task-x"}),
        ("inbox", {"task-x", "task-y", "evt-cli-x"}),
        ("petition list", {sample.run, "nothing"}),
    ):
        listed = cli(*words.split(), "--json")
        assert (listed.code, bool(listed.document)) == (0, True), listed
        assert {line.partition(" is left out: ")[0] for line in listed.err.splitlines()} == left_out
    for noun in ("template", "git", "mcp"):
        assert f"{noun}-x is left out" in cli(noun, "list", "--json").err
    for words in ("workflow show task-x", "petition list task-x"):
        done = cli(*words.split())
        assert (done.code, "cannot be read by this version" in done.err) == (1, True), done


async def make_unreadable(realm: Path, run: str) -> None:
    """Store a petition of the older run, then make that run and one item of each other kind unreadable."""
    application, began = declare_application(Realm()), utc_now() - timedelta(days=2)
    async with (
        open_bus(f"file:{realm}", application.topology, application.kinds) as bus,
        bus.transaction() as transaction,
    ):
        record = await transaction.get(WORKFLOWS.name, run)
        assert record
        doc = {"status": "COMPLETED", "createdAt": began.isoformat()}
        await transaction.put(record.replace(state="COMPLETED", doc=doc))
        naive = {"created_at": "2026-02-07T10:00:00"}
        await transaction.put(Record(kind=WORKFLOWS.name, id="wf-x", state="RUNNING", doc={"id": "wf-x"}))
        await transaction.put(Record(kind=EVENTS.name, id="evt-cli-x", state="pending", doc={"created_at": "lately"}))
        await transaction.put(Record(kind=ASSIGNMENTS.name, id="task-x", state="pending", doc=naive))
        for kind, noun in ((TEMPLATES, "template"), (GITS, "git"), (MCP_SERVERS, "mcp")):
            await transaction.put(Record(kind=kind.name, id=f"{noun}-x", state=ACTIVE))
        ask = await transaction.get(QUESTIONS.name, TASK)
        assert ask
        doc = {**ask.doc, "id": "task-x", "task_id": "task-x", "given": "evt-cli-x"}
        await transaction.put(ask.replace(id="task-x", version=0, doc=doc))
        await transaction.put(Record(kind=QUESTIONS.name, id="task-y", state="open"))
        await transaction.put(Record(kind=PETITIONS.name, id="nothing", state="requested"))
        whose: dict[str, Any] = {"root": "task-20260205-001", "general": "gen-hello", "workflow_id": run}
        asked = Petition(id="earlier", kind="github.comment", target="a#1", body={}, created_at=began, **whose)
        await save_petition(transaction, asked, None)
