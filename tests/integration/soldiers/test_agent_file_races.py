"""An agent that swaps folders and files for links while the host works on them reaches nothing outside.

Each race is also run with plain file operations. They do reach a file outside, which shows that the race can be won.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.files.agent_files import AgentFile, list_files_below
from kingdom.soldiers.files.removal import remove_tree
from kingdom.soldiers.turns.result import read_result
from kingdom.soldiers.workplace import work_space
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.run.work import Work
from tests.integration.soldiers import swapping
from tests.patience import PATIENCE_SECONDS

OWN, SECRET = "own", "secret"
TRIES = 1000
NUMBERS = count(1)
CALLS = (
    *("chmod", "listdir", "lstat", "mkdir", "open", "readlink", "rename", "replace", "rmdir", "scandir", "stat"),
    *("symlink", "unlink"),
)


@dataclass(frozen=True, slots=True)
class Race:
    """An action of the host in a WorkSpace, while an agent swaps the path `swapped` there.

    `safely` is the function of the host, and `plainly` does the same with plain file operations. Both return the text
    that they read.
    """

    swapped: str
    safely: Callable[[Path], object]
    plainly: Callable[[Path], object]


def lay_out(space: Path) -> None:
    work = Work.of("wf-1-w1", WorkDefinition(name="Work", tasks=(TaskDefinition(query="work"),)))
    work_space.lay_out_work_space(space, space.parent / "run", work, [], {f"reports/{next(NUMBERS)}.md": "# Found\n"})


def link_plainly(space: Path) -> None:
    if not (space / "reports").is_symlink():
        (space / "reports" / f"{next(NUMBERS)}.md").symlink_to(space.parent / "run")


def read_plainly(file: Path, flags: int = os.O_NOFOLLOW) -> bytes:
    with os.fdopen(os.open(file, os.O_RDONLY | flags), "rb") as opened:
        return opened.read()


def list_plainly(space: Path) -> list[str]:
    return [name for _, _, names in os.walk(space, followlinks=False) for name in names]


def remove_plainly(space: Path) -> None:
    for folder, _, names in os.walk(space, followlinks=False):
        for name in names:
            Path(folder, name).unlink()


RACES = {
    "read a result": Race("result.json", read_result, lambda space: read_plainly(space / "result.json", 0)),
    "read in a folder": Race(
        "folder",
        lambda space: AgentFile(space, "folder/file").read(100),
        lambda space: read_plainly(space / "folder" / "file"),
    ),
    "write": Race(
        "folder",
        lambda space: AgentFile(space, "folder/deep/new").write(OWN),
        lambda space: write_atomically(space / "folder" / "deep" / "new", OWN),
    ),
    "lay out": Race("reports", lay_out, link_plainly),
    "list": Race("folder", lambda space: [*list_files_below(space, leaving_out=".git")], list_plainly),
    "remove": Race("folder", remove_tree, remove_plainly),
}


class SwapInjector:
    """Replaces a path by a link before a chosen system call, and with `brief` restores it before the next call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = {name: getattr(os, name) for name in CALLS}
        self._actions_left: list[Callable[[], None]] = []
        self.has_swapped = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._with_injection(self._real[name]))

    @contextmanager
    def at(self, call: int, race: Race, place: Path, *, brief: bool) -> Iterator[None]:
        """Swap before the n-th system call in the block, counted from 0."""
        name, outside = place / "space" / race.swapped, outside_of(race, place)
        aside = name.with_name("aside")

        def swap() -> None:
            self.has_swapped = True
            self._real["rename"](name, aside)
            self._real["symlink"](outside, name)

        def swap_back() -> None:
            self._real["unlink"](name)
            self._real["rename"](aside, name)

        self.has_swapped = False
        self._actions_left = [*([lambda: None] * call), swap, *([swap_back] if brief else [])]
        try:
            yield
        finally:
            self._actions_left = []

    def _with_injection(self, real: Callable[..., object]) -> Callable[..., object]:
        def injected_call(*arguments: object, **options: object) -> object:
            if self._actions_left:
                # The swap itself may fail, because the host also changes the path.
                with suppress(OSError):
                    self._actions_left.pop(0)()
            return real(*arguments, **options)

        return injected_call


@pytest.mark.parametrize("brief", [False, True], ids=["for good", "for one call"])
@pytest.mark.parametrize("name", RACES)
def test_a_swap_before_any_system_call_reaches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, brief: bool
) -> None:
    race, injector = RACES[name], SwapInjector(monkeypatch)

    def wins(act: Callable[[Path], object]) -> list[int]:
        """Return the numbers of the calls before which a swap reaches something outside."""
        won = []
        for call in count():
            place = make_place(tmp_path / str(next(NUMBERS)))
            if is_won(act, place, injector.at(call, race, place, brief=brief)):
                won.append(call)
            if not injector.has_swapped:
                return won
        raise AssertionError

    assert wins(race.plainly)
    assert not wins(race.safely)


@pytest.mark.long
@pytest.mark.parametrize("name", RACES)
def test_a_process_that_swaps_all_the_time_reaches_nothing_outside(tmp_path: Path, name: str) -> None:
    race = RACES[name]
    with swapping_in(race, make_place(tmp_path / "plain")) as place:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_won(race.plainly, place):
            assert time.monotonic() < deadline, "no swap came in time, so the race shows nothing"
    with swapping_in(race, make_place(tmp_path / "safe")) as place:
        assert not any(is_won(race.safely, place) for _ in range(TRIES))


def make_place(place: Path) -> Path:
    """Make a WorkSpace, and something outside of it."""
    space, outside = place / "space", place / "outside"
    for folder in (space / "folder" / "deep", space / "reports", outside / "deep"):
        folder.mkdir(parents=True)
    for file in ("result.json", "folder/file"):
        (space / file).write_text(json.dumps({"summary": OWN}))
    for file in ("file", SECRET):
        (outside / file).write_text(json.dumps({"summary": SECRET}))
    return place


def outside_of(race: Race, place: Path) -> Path:
    """Return the target of a link."""
    return place / "outside" / ("file" if "." in race.swapped else "")


@contextmanager
def swapping_in(race: Race, place: Path) -> Iterator[Path]:
    """Let a process swap the paths during the block."""
    words = [str(place / "space" / race.swapped), str(outside_of(race, place))]
    with subprocess.Popen([sys.executable, "-I", swapping.__file__, *words], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout
            assert agent.stdout.readline()
            yield place
        finally:
            agent.kill()


def is_won(act: Callable[[Path], object], place: Path, meddling: AbstractContextManager[None] | None = None) -> bool:
    """Return whether the host has read or changed something outside."""
    before = contents(place / "outside")
    (place / "space").mkdir(exist_ok=True)
    seen: object = None
    with suppress(OSError, ProgramFailed), meddling or nullcontext():
        seen = act(place / "space")
    return SECRET in str(seen) or contents(place / "outside") != before


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the entries of a folder with their permissions and texts."""
    paths = (folder, *folder.rglob("*"))
    return {str(path): (path.lstat().st_mode, path.read_text() if path.is_file() else "") for path in paths}
