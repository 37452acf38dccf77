"""An agent that swaps folders and files for links while the host works on them gets nothing by it.

Each race is first run in the plain way, until the agent has won: it can be won.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers import work_space
from kingdom.soldiers.agent_files import AgentFile, files_below
from kingdom.soldiers.removal import remove_tree
from kingdom.soldiers.result import read_result
from kingdom.whole_file import write_whole
from kingdom.workflow.model.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.work import Work
from tests.integration.soldiers import swapping
from tests.patience import PATIENCE_SECONDS

OWN, SECRET = "own", "secret"
NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Race:
    """What the host does below a WorkSpace in which something is swapped; either way returns what it has seen."""

    swapped: str
    safely: Callable[[Path], object]
    plainly: Callable[[Path], object]


def lay_out(space: Path) -> None:
    work = Work.of("wf-1-w1", WorkDefinition(name="Work", tasks=(TaskDefinition(query="work"),)))
    work_space.lay_out(space, space.parent / "run", work, [], {f"reports/{next(NUMBERS)}.md": "# Found\n"})


def link_plainly(space: Path) -> None:
    if not (space / "reports").is_symlink():
        (space / "reports" / f"{next(NUMBERS)}.md").symlink_to(space.parent / "run")


def read_plainly(file: Path) -> bytes:
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        return opened.read()


def list_plainly(space: Path) -> list[str]:
    return [name for _, _, names in os.walk(space, followlinks=False) for name in names]


def remove_plainly(space: Path) -> None:
    for folder, _, names in os.walk(space, followlinks=False):
        for name in names:
            Path(folder, name).unlink()


RACES = {
    "read a result": Race("result.json", read_result, lambda space: (space / "result.json").read_text()),
    "read in a folder": Race(
        "folder",
        lambda space: AgentFile(space, "folder/file").read(100),
        lambda space: read_plainly(space / "folder" / "file"),
    ),
    "write": Race(
        "folder",
        lambda space: AgentFile(space, "folder/deep/new").write(OWN),
        lambda space: write_whole(space / "folder" / "deep" / "new", OWN),
    ),
    "lay out": Race("reports", lay_out, link_plainly),
    "list": Race("folder", lambda space: [*files_below(space, leaving_out=".git")], list_plainly),
    "remove": Race("folder", remove_tree, remove_plainly),
}


@pytest.mark.parametrize("tries", [100, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", RACES)
def test_an_agent_that_swaps_what_the_host_works_on_wins_nothing(tmp_path: Path, name: str, tries: int) -> None:
    race = RACES[name]
    with swapped(race, tmp_path / "plain") as place:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_won(race.plainly, place):
            assert time.monotonic() < deadline, "nobody can win this race"
    with swapped(race, tmp_path / "safe") as place:
        assert not any(is_won(race.safely, place) for _ in range(tries))


@contextmanager
def swapped(race: Race, place: Path) -> Iterator[Path]:
    """Swap something in a WorkSpace for a link to what is outside of it, as long as the block lasts."""
    space, outside = place / "space", place / "outside"
    is_folder = "." not in race.swapped
    (space / "folder" / "deep").mkdir(parents=True)
    (space / "reports").mkdir()
    for file in ("result.json", "folder/file"):
        (space / file).write_text(json.dumps({"summary": OWN}))
    (outside / "deep").mkdir(parents=True)
    for file in ("file", SECRET):
        (outside / file).write_text(json.dumps({"summary": SECRET}))
    words = [str(space / race.swapped), str(outside if is_folder else outside / "file")]
    with subprocess.Popen([sys.executable, "-I", swapping.__file__, *words], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout
            assert agent.stdout.readline()
            yield place
        finally:
            agent.kill()


def is_won(act: Callable[[Path], object], place: Path) -> bool:
    """Tell whether the host has seen or changed something outside."""
    before = contents(place / "outside")
    (place / "space").mkdir(exist_ok=True)
    seen: object = None
    with suppress(OSError, ProgramFailed):
        seen = act(place / "space")
    return SECRET in str(seen) or contents(place / "outside") != before


def contents(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() if path.is_file() else "" for path in folder.rglob("*")}
