import http.client
import json
import re
import signal
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kingdom.court.heartbeat import ROLES
from tests.acceptance.isolated_demo import IsolatedDemo
from tests.acceptance.terminal import CTRL_C, Terminal, open_to_others
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.installed


@pytest.fixture
def isolated_demo(tmp_path: Path) -> IsolatedDemo:
    return IsolatedDemo(tmp_path / "corner")


def send(url: str, method: str, path: str, body: str = "", **headers: str) -> tuple[str, str]:
    """Send a request as a browser does, and return the cookie and the text of the response."""
    given = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json", **headers}
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_SECONDS)) as connection:
        connection.request(method, path, body, given)
        response = connection.getresponse()
        assert response.status == http.HTTPStatus.OK
        return response.headers.get("Set-Cookie", "").partition(";")[0], response.read().decode()


@pytest.mark.parametrize(
    ("words", "number"),
    [("", signal.SIGINT), ("1/6 ", signal.SIGINT), ("asks a person", signal.SIGTERM), ("kill -9", signal.SIGINT)],
)
def test_a_demo_that_is_stopped_leaves_no_process_and_no_file(
    isolated_demo: IsolatedDemo, words: str, number: signal.Signals
) -> None:
    with isolated_demo.demo() as demo:
        deadline = time.monotonic() + PATIENCE_SECONDS
        # The demo itself and six roles, some of which may not have started yet.
        running = len(ROLES) if words else 0
        while not (
            isolated_demo.files() and words in isolated_demo.story() and len(isolated_demo.processes()) > running
        ):
            assert time.monotonic() < deadline, isolated_demo.story()[-3000:]
            time.sleep(0.05)
        demo.send_signal(number)
        # A second interrupt must not prevent the cleanup.
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        assert (demo.returncode, out) == (128 + number, ""), isolated_demo.story()[-3000:]
    assert "Stopped. Nothing is left behind." in isolated_demo.story()
    assert (isolated_demo.files(), isolated_demo.processes()) == ([], [])


def test_a_person_watches_the_demo_in_a_browser(isolated_demo: IsolatedDemo) -> None:
    with isolated_demo.demo("--web") as demo:
        deadline, link = time.monotonic() + PATIENCE_SECONDS, None
        while not (link := re.search(r"(http://127\.0\.0\.1:\d+)/sign-in#(\S+)", isolated_demo.story())):
            assert time.monotonic() < deadline, isolated_demo.story()[-3000:]
            time.sleep(0.05)
        url, secret = link.groups()
        cookie, _ = send(url, "POST", "/api/v1/session", json.dumps({"secret": secret}))
        while "gen-ticket" not in send(url, "GET", "/runs", Cookie=cookie)[1]:
            assert time.monotonic() < deadline, isolated_demo.story()[-3000:]
            time.sleep(0.2)
        out, _ = demo.communicate(timeout=PATIENCE_SECONDS)
        assert (demo.returncode, json.loads(out)["ok"]) == (0, True), isolated_demo.story()[-3000:]
    assert (isolated_demo.files(), isolated_demo.processes()) == ([], [])


@pytest.fixture
def terminal(isolated_demo: IsolatedDemo, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in isolated_demo.environment.items():
        monkeypatch.setenv(name, value)
    return Terminal(isolated_demo.directory, "file:nowhere")


def test_ctrl_c_in_place_of_an_answer_leaves_nothing(isolated_demo: IsolatedDemo, terminal: Terminal) -> None:
    done = terminal.converse("demo", until="Your answer: ", answer=CTRL_C)
    assert (done.code, "Nothing is left behind." in done.out) == (128 + signal.SIGINT, True), done.out[-3000:]
    assert (isolated_demo.files(), isolated_demo.processes()) == ([], [])


def test_a_person_answers_and_finds_everything_in_the_shown_places(
    isolated_demo: IsolatedDemo, terminal: Terminal
) -> None:
    answer = "No, keep the cents."
    done = terminal.converse("demo", "--keep", until="Your answer: ", answer=f"{answer}\n")
    assert (done.code, "Nothing was lost, and nothing was done twice." in done.out) == (0, True), done.out[-3000:]
    (directory,) = isolated_demo.files()
    assert f"cd {directory}" in done.out
    assert open_to_others(directory) == []
    assert "kingdom explain task-" in done.out
    shown = [line.split("cat ")[1].split()[0] for line in done.out.splitlines() if "cat " in line]
    assert len(shown) > 5
    assert [path for path in shown if not (directory / path).is_file()] == []
    assert f"The team says: {answer}" in (directory / "outside" / "github.json").read_text()
    (ask,) = (directory / "realm" / "state" / "asks" / "answered").glob("*.json")
    assert json.loads(ask.read_text())["answered_by"] == "tester"
    assert isolated_demo.processes() == []
