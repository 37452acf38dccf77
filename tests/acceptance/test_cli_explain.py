"""`kingdom explain` on the real command line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kingdom.court.explain.timeline import Timeline
from tests.acceptance.runs import Runs, script, write
from tests.acceptance.terminal import Done, Terminal

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def files(tmp_path: Path, realm: Path) -> Terminal:
    return Terminal(tmp_path, f"file:{realm}")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(Terminal(tmp_path, f"file:{tmp_path / 'realm'}"), tmp_path)
    with runs.engine():
        yield runs


def read(done: Done) -> Timeline:
    assert done.code == 0, done.err
    return msgspec.json.decode(done.out, type=Timeline)


def test_a_run_of_a_person_is_explained_as_text_json_and_page(runs: Runs) -> None:
    prompt_script = script({"ask": f"{HOSTILE} or not?"}, write("a.txt", "a"), {"cost": 0.25})
    runs.template("Story", {"name": "decide", "tasks": [prompt_script]})
    workflow_id = runs.run_json("create", "story", "--start")["id"]
    runs.reaches(workflow_id, "AWAITING")
    assert runs.run("resume", "last", "--reply", "not", "--wait").code == 0
    timeline = read(runs.terminal.run("explain", workflow_id, "--json"))
    assert (timeline.about, timeline.status, timeline.cost_usd, timeline.event) == (
        workflow_id,
        "COMPLETED",
        0.25,
        None,
    )
    (question,) = timeline.strands[0].questions
    assert (question.question, question.answered_by) == (f"{HOSTILE} or not?", "tester")
    shown = runs.terminal.run("explain", "last")
    assert shown.code == 0
    for words in ("waits for a person", "took checkpoint w1-c1 after decide", "$0.25"):
        assert words in shown.out
    page = runs.directory / "story.html"
    assert "open it in a browser" in runs.terminal.run("explain", "last", "--html", str(page)).out
    text = page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; or not?" in text
    assert "<script" not in text


def test_an_event_that_is_not_routed_yet_is_explained_too(files: Terminal) -> None:
    event_id = files.run_json("event", "send", "--type", "demo.hello", "--payload", '{"title": "Hello"}')["id"]
    timeline = read(files.run("explain", event_id, "--json"))
    assert timeline.event
    assert (timeline.event.subject, timeline.status, timeline.ended_at) == ("Hello", "pending", None)
    assert [moment.what for moment in timeline.moments] == ["received demo.hello from cli"]


@pytest.mark.parametrize("about", ["task-20260207-001", "evt-github-1", "wf-nothing", "something"])
def test_an_unknown_id_is_reported_with_the_next_step(files: Terminal, about: str) -> None:
    files.run_json("event", "send", "--type", "demo.hello")
    done = files.run("explain", about)
    assert (done.code, done.out) == (1, "")
    assert about in done.err
    assert "kingdom event list" in done.err


def test_a_page_that_cannot_be_written_is_reported(files: Terminal, tmp_path: Path) -> None:
    event_id = files.run_json("event", "send", "--type", "demo.hello")["id"]
    done = files.run("explain", event_id, "--html", str(tmp_path / "nowhere" / "page.html"))
    assert done.code == 2
    assert "an existing directory" in done.err


def test_an_event_in_a_database_is_explained_too(terminal: Terminal) -> None:
    event_id = terminal.run_json("event", "send", "--type", "demo.hello")["id"]
    assert read(terminal.run("explain", event_id, "--json")).about == event_id
    assert terminal.run("explain", "task-20260207-001").code == 1
