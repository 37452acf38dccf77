"""Run every command of the documentation, and compare its output with the page."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.postgres import PrivateCluster
from tests.documentation.page import CONSOLE, Fenced, fenced_blocks
from tests.documentation.playing import WrongPage, play
from tests.documentation.surroundings import ROOT
from tests.patience import PATIENCE_SECONDS

PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
_numbers = itertools.count()
# The page that new users read first runs in the gate.
FIRST = "README.md"

# The number of blocks per page that cannot run here, since they need root, another machine, or a vendor's key.
UNRUN = {"docs/operations/deploy.md": 2, "docs/releasing.md": 1}
# A line that begins with one of these is a command, even without a prompt.
PROGRAMS = re.compile(
    r"(apt|apt-get|brew|cd|chmod|chown|cp|curl|docker|export|git|kingdom|make|mkdir|npm|npx|pg_dump|pg_restore|pip|pipx"
    r"|podman|psql|python3?|rm|sudo|systemctl|useradd|uvx?)( |$)"
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def has_console(path: Path) -> bool:
    # Not parsed, so that an invalid page fails only its own test.
    return any(line.strip().strip("`") == CONSOLE for line in path.read_text().splitlines())


@pytest.fixture
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    def create() -> str:
        cluster: PrivateCluster = request.getfixturevalue("cluster")
        return cluster.create_database(f"page_{next(_numbers)}")

    return create


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=name_of(path), marks=() if name_of(path) == FIRST else pytest.mark.pages)
        for path in PAGES
        if has_console(path)
    ],
)
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, new_database: Callable[[], str]) -> None:
    play(page.read_text(), name_of(page), new_database)


def test_shell_is_written_as_console() -> None:
    wrong = [
        f"{name_of(page)}:{block.line}: write `console`, and `$ ` before each command, so that it is run"
        for page in PAGES
        for block in fenced_blocks(page.read_text())
        if block.language in ("bash", "sh", "shell", "zsh", "shell-session")
    ]
    assert wrong == []


def shows_commands(block: Fenced) -> bool:
    return any(line.startswith(("$ ", "# ")) or PROGRAMS.match(line) for line in block.lines)


def test_commands_that_are_not_run_are_few_and_known() -> None:
    found: dict[str, int] = {}
    for page in PAGES:
        for block in fenced_blocks(page.read_text()):
            if block.language in ("", "text") and shows_commands(block):
                found[name_of(page)] = found.get(name_of(page), 0) + 1
    assert found == UNRUN


def no_database() -> str:
    pytest.fail("this page needs no database")


def played(text: str, seconds: float = PATIENCE_SECONDS) -> None:
    play(text, "page.md", no_database, seconds=seconds)


def test_a_session_keeps_its_directory_its_variables_and_its_jobs() -> None:
    played(
        "```console\n$ mkdir new && cd new\n$ export NAME=anna\n$ read line; sleep 60 &\n```\n"
        "```console\n$ basename $PWD; echo $NAME\nnew\nanna\n$ ls -A ~\n$ kill $!\n"
        "$ cat <<'EOF'\n$HOME\nEOF\n$HOME\n```\n"
    )


def test_a_terminal_runs_in_parallel_with_the_page() -> None:
    played(
        '```console\n$ mkdir new && cd new\n```\n<!-- shell: terminal until "ready" -->\n```console\n'
        "$ while ! test -e go; do echo ready; sleep 0.1; done; touch gone; sleep 60\n```\n"
        "```console\n$ touch go; until test -e gone; do sleep 0.1; done\n```\n"
        "<!-- shell: terminal -->\n```console\n$ touch now; until test -e then; do echo early; done; echo late\n```\n"
        "```console\n$ touch then\n```\n"
        '<!-- shell: after "late" -->\n```console\n$ ls\ngo\ngone\nnow\nthen\n```\n'
    )


def test_nothing_of_a_page_outlives_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    played(f"```console\n$ setsid sleep 600 & echo $! > {number}\n$ pwd >> {number}\n```\n")
    pid, directory = number.read_text().split()
    assert not psutil.pid_exists(int(pid))
    assert not Path(directory).exists()


@pytest.mark.parametrize(
    ("page", "reported"),
    [
        ("\n```console\n$ true\n$ kingdom dmeo\n```\n", ["page.md:4: it ended with status 2", "kingdom dmeo", "demo"]),
        ("```console\n$ echo one\ntwo\n```\n", ["page.md:2: it prints something else", "    two", "    one"]),
        ("<!-- shell: fails -->\n```console\n$ true\n```\n", ["page.md:3: it should fail, and does not"]),
        ("```console\n$ echo 'open\n```\n", ["page.md:2: it ended with status"]),
        ("```console\n$ exit\n```\n", ["page.md:2: it ended the shell"]),
        ("<!-- shell: terminal -->\n```console\n$ echo no; false\nyes\n```\n", ["page.md:3: the terminal ended", "no"]),
    ],
    ids=["error", "output", "success", "quote", "exit", "terminal"],
)
def test_a_wrong_page_is_reported_with_its_line(page: str, reported: list[str]) -> None:
    with pytest.raises(WrongPage) as wrong:
        played(page)
    for words in reported:
        assert words in str(wrong.value)


def test_a_command_that_does_not_end_in_time_is_reported() -> None:
    with pytest.raises(WrongPage, match="has not ended after 1 s"):
        played("```console\n$ sleep 60\n```\n", seconds=1)
