"""Runs on a store of files, from the command line alone; one engine serves all of these tests."""

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.acceptance.runs import Runs, script, write
from tests.acceptance.terminal import Terminal, eventually, open_to_others

REPORT = {"reportOutline": [{"title": "Result"}]}
WAITS: dict[str, Any] = {"name": "wait", "tasks": [script({"wait_for": "app/go"}, write("b.txt", "after"))]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    directory = tmp_path_factory.mktemp("runs")
    runs = Runs(Terminal(directory, f"file:{directory / 'realm'}"), directory)
    with runs.engine():
        yield runs


def test_a_run_is_followed_to_its_end_and_its_results_can_be_shown(runs: Runs) -> None:
    prompt_script = script(write("a.txt", "hello"), {"report": "# Result\n\nAll is well."}, {"cost": 0.25})
    runs.template(
        "Greet",
        {"name": "greet", "tasks": [{"query": prompt_script, **REPORT}], "verify": ["test -f app/a.txt"]},
        {"name": "part", "tasks": [script(write("b.txt", "bye"))]},
    )
    done = runs.run("create", "greet", "--name", "Say hello", "--start", "--wait")
    assert done.code == 0, done.err
    assert "WorkStarted by engine: workId=w1" in done.out
    last = done.out.splitlines()[-2]
    assert last.endswith(" is COMPLETED")
    workflow_id = last.split()[0]

    shown = runs.run("show", "last").out
    assert shown.startswith(f"{workflow_id} Say hello COMPLETED on box (UP), $0.25")
    assert "1. greet (w1) COMPLETED attempt 1, $0.25" in shown
    assert "w1-t1 COMPLETED query RESPONDED, report COMPLETED" in shown
    assert f"branch kingdom/{workflow_id}/say-hello from main" in shown
    assert "w2-c1 after part (w2), valid" in shown
    assert "next: release, delete" in shown

    report = runs.run("report", workflow_id)
    assert "All is well." in report.out
    (document,) = runs.run_json("report", workflow_id, "w1-t1")
    assert (document["workName"], document["text"]) == ("greet", "# Result\n\nAll is well.")
    assert "has no reportOutline" in runs.run("report", workflow_id, "w2-t1").out

    patch = runs.run("diff", workflow_id).out
    checked = subprocess.run(
        ["git", "-C", str(runs.directory / "app"), "apply", "--check", "-"], input=patch, text=True, check=False
    )
    assert checked.returncode == 0
    assert "+hello" in patch
    since = runs.run("diff", workflow_id, "--since", "w1-c1").out
    assert "+bye" in since
    assert "hello" not in since
    # The store, the clone, the checkout, the homes of agents, transcripts and reports.
    assert open_to_others(runs.directory / "realm") == []


def test_a_realm_can_replace_the_instructions_in_the_folder_of_its_agents(runs: Runs) -> None:
    guide = runs.directory / "realm" / "config" / "workspace-claude.md"
    guide.parent.mkdir()
    guide.write_text("Our own rules for {{name}}.\n")
    runs.template("Follow", {"name": "follow", "tasks": [script({"run": "cp CLAUDE.md app/rules.md"})]})
    workflow = runs.run_json("create", "follow", "--start", "--wait")
    guide.unlink()
    assert "+Our own rules for follow." in runs.run("diff", workflow["id"]).out
    plain = runs.run_json("create", "follow", "--start", "--wait")
    assert "+You work in your own folder." in runs.run("diff", plain["id"]).out


def test_the_history_of_a_run_is_shown(runs: Runs) -> None:
    runs.template("Talk", {"name": "talk", "tasks": [script({"say": "I listen"}, {"answer": "understood"})]})
    workflow = runs.run_json("create", "talk", "--start", "--wait")
    followed = runs.run("logs", workflow["id"], "-f", "--json").documents
    assert [followed[0]["type"], followed[-1]["type"]] == ["WorkflowCreated", "WorkflowCompleted"]
    assert {entry["aggregateId"] for entry in followed} == {workflow["id"]}
    of_work = runs.run("logs", workflow["id"], "--work", "talk").out
    assert "QuerySent by engine: workId=w1 taskId=w1-t1" in of_work
    assert "WorkflowCreated" not in of_work


def test_a_question_waits_for_a_reply_and_the_session_continues_with_it(runs: Runs) -> None:
    asks = script({"ask": "Which colour?", "choices": ["red", "blue"]}, write("colour.txt", "{reply}"))
    runs.template("Colour", {"name": "choose", "tasks": [asks]})
    asked = runs.run("create", "colour", "--start", "--wait", "--json")
    assert asked.code == 4
    workflow_id = asked.document["id"]
    assert (asked.document["status"], asked.document["question"]["text"]) == ("AWAITING", "Which colour?")
    assert "asks: Which colour? (red / blue)" in runs.run("show", workflow_id).out

    passed_over = runs.run("resume", workflow_id)
    assert passed_over.code == 2
    assert "Which colour? Answer with --reply" in passed_over.err
    assert runs.run("resume", workflow_id, "--reply", "blue", "--from-base").code == 2
    assert runs.run("resume", workflow_id, "--reply", "blue", "--wait").code == 0
    assert "+blue" in runs.run("diff", workflow_id).out
    assert runs.run("resume", workflow_id, "--reply", "red").code == 2


def test_a_paused_run_continues_in_its_session_and_detaching_does_not_disturb_it(runs: Runs) -> None:
    runs.template("Rest", {**WAITS, "tasks": [*WAITS["tasks"], script(write("c.txt", "second"))]})
    workflow_id = runs.run_json("create", "rest")["id"]
    assert runs.run("prepare", workflow_id, "--wait").out.splitlines()[-2] == f"{workflow_id} is READY"
    with runs.terminal.start("workflow", "start", workflow_id, "--wait") as looking:
        eventually(lambda: any("QuerySent" in line for line in looking.printed_lines()) and "sent")
        looking.process.send_signal(signal.SIGINT)
        assert looking.ends() == 128 + signal.SIGINT

    asked = runs.run("pause", workflow_id)
    assert f"{workflow_id} is RUNNING and about to pause (a person paused it)" in asked.out
    # The turn may end before the agent is stopped.
    (runs.tree(workflow_id) / "go").touch()
    paused = runs.reaches(workflow_id, "PAUSED")
    assert [task["query"]["status"] for task in paused["works"][0]["tasks"]] == ["RESPONDED", "PENDING"]
    resumed = runs.run("resume", workflow_id, "--continue", "--wait", "--json")
    assert (resumed.code, resumed.document["status"]) == (0, "COMPLETED")
    assert resumed.document["works"][0]["agent"]["attempt"] == 2


def test_a_cancelled_run_ends_for_good(runs: Runs) -> None:
    runs.template("Stop", WAITS)
    workflow_id = runs.run_json("create", "stop", "--start")["id"]
    runs.reaches(workflow_id, "RUNNING")
    cancelled = runs.run("cancel", workflow_id, "--wait", "--json")
    assert (cancelled.code, cancelled.document["status"]) == (0, "CANCELLED")
    refused = runs.run("start", workflow_id)
    assert refused.code == 1
    assert f"workflow {workflow_id} is CANCELLED: cannot start it; allowed now: delete, release" in refused.err
    assert runs.run("delete", workflow_id).out == f"{workflow_id} is deleted\n"
    assert workflow_id not in runs.run("list").out
    assert workflow_id in runs.run("list", "--all", "--status", "CANCELLED").out


def test_a_failed_run_can_be_resumed_from_a_checkpoint(runs: Runs) -> None:
    runs.template(
        "Check",
        {"name": "first", "tasks": [script(write("a.txt", "a"))]},
        {"name": "second", "tasks": [script(write("b.txt", "b"))], "verify": ["test -f app/never.txt"]},
    )
    failed = runs.run("create", "check", "--start", "--wait")
    assert failed.code == 1
    workflow_id = failed.out.splitlines()[-1].split()[-1].rstrip(")")
    assert f"{workflow_id} is FAILED: " in failed.out
    assert "`test -f app/never.txt` failed" in runs.run("show", workflow_id).out
    (point,) = runs.run_json("checkpoints", workflow_id)
    assert (point["workId"], point["valid"]) == (f"{workflow_id}-w1", True)
    assert "w1-c1" in runs.run("checkpoints", workflow_id).out

    definition = yaml.safe_load(runs.run("definition", workflow_id).out)
    definition["works"][1] = {"name": "instead", "tasks": [script(write("c.txt", "c"))]}
    changed = runs.run("modify", workflow_id, "-", "--json", text=yaml.safe_dump(definition))
    assert changed.code == 1
    assert "keeps its place" in changed.err
    assert runs.run("resume", workflow_id, "--from", "w9-c1").code == 1
    resumed = runs.run("resume", workflow_id, "--from", "w1-c1", "--wait")
    assert resumed.code == 1
    assert "RolledBack by box: checkpointId=w1-c1" in resumed.out


def test_an_unstarted_work_can_be_changed(runs: Runs) -> None:
    runs.template("Change", {"name": "old", "tasks": ["Nothing."]})
    workflow_id = runs.run_json("create", "change")["id"]
    definition = yaml.safe_load(runs.run("definition", workflow_id).out)
    assert definition["gitRefs"] == [{"gitId": "app", "baseBranch": "main"}]
    definition["works"].insert(0, {"name": "new", "tasks": [script(write("new.txt", "new"))]})
    definition["gitRefs"] = ["app"]
    changed = runs.run("modify", workflow_id, "-", "--json", text=yaml.safe_dump(definition)).document
    assert [work["id"] for work in changed["works"]] == [f"{workflow_id}-w2", f"{workflow_id}-w1"]
    assert changed["gitRefs"] == [{"gitId": "app", "baseBranch": "main"}]


def test_a_run_is_named_by_any_unique_part_of_its_id(runs: Runs) -> None:
    runs.template("Named", {"name": "one", "tasks": ["Nothing."]})
    first, second = runs.run_json("create", "named")["id"], runs.run_json("create", "named")["id"]
    assert runs.run_json("show", "last")["workflow"]["id"] == second
    assert runs.run_json("show", first[-5:])["workflow"]["id"] == first
    ambiguous = runs.run("show", "wf-")
    assert ambiguous.code == 1
    assert f"'wf-' matches {second} (CREATED), {first} (CREATED)" in ambiguous.err
    unknown = runs.run("cancel", "nobody")
    assert (unknown.code, "`kingdom workflow list` shows all" in unknown.err) == (1, True)
    listed = runs.run_json("list", "--limit", "2", "--status", "CREATED")
    assert [workflow["id"] for workflow in listed] == [second, first]


def test_a_person_at_a_terminal_sees_the_run_as_a_tree_that_is_updated(runs: Runs) -> None:
    runs.template("Look", {"name": "look", "tasks": [script({"wait_for": "app/go"}, {"ask": "Shall I?"})]})

    def let_it_go_on() -> None:
        (runs.tree(runs.run_json("show", "last")["workflow"]["id"]) / "go").touch()

    words = ("workflow", "create", "look", "--start", "--wait")
    screen = runs.terminal.converse(*words, until="RUNNING", answer=let_it_go_on).out
    assert "1. look (w1)" in screen
    assert "it asks: Shall I?" in screen
    assert screen.index("RUNNING") < screen.index("AWAITING")


def test_listing_runs_in_a_directory_without_a_store_fails_and_creates_nothing(runs: Runs) -> None:
    done = runs.terminal.run("workflow", "list", "--database-url", f"file:{runs.directory / 'nowhere'}")
    assert done.code != 0
    assert not (runs.directory / "nowhere").exists()
