"""An agent that replaces files by links while the host works, until it succeeds, at most 1,000 times."""

import time
from contextlib import suppress
from itertools import count

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import GitPolicy
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from tests.integration.soldiers.sources import a_tree, make_source
from tests.integration.soldiers.test_acting_agents import FILES, KEY, leaked, swapping
from tests.integration.soldiers.test_agent_file_races import RACES, SwapInjector, is_won, make_place, swapping_in
from tests.patience import PATIENCE_SECONDS
from tests.redteam.defended import AttemptClass, Ground

RACING = AttemptClass("racing")
TRIES = 1000
# Searching all objects takes longer than a commit.
_TRIES_PER_SEARCH = 25


@RACING.stopped_by(
    "files opened step by step, no link followed",
    {f"{name}, {how}": (name, how == "for one call") for how in ("for good", "for one call") for name in RACES},
    quick=True,
)
async def swap_before_each_call_of_the_system(ground: Ground, case: tuple[str, bool]) -> str:
    name, brief = case
    race = RACES[name]
    act = race.safely if ground.is_defended else race.plainly
    with pytest.MonkeyPatch.context() as patch:
        injector = SwapInjector(patch)
        for call in count():
            place = make_place(ground.folder / str(call))
            if is_won(act, place, injector.at(call, race, place, brief=brief)):
                return f"a swap before call {call}"
            if not injector.has_swapped:
                return ""
    raise AssertionError


@RACING.stopped_by("files opened step by step, no link followed", {name: name for name in RACES})
async def swap_all_the_time(ground: Ground, name: str) -> str:
    race = RACES[name]
    with swapping_in(race, make_place(ground.folder / "place")) as place:
        if ground.is_defended:
            return next((f"try {number}" for number in range(TRIES) if is_won(race.safely, place)), "")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if is_won(race.plainly, place):
                return "plain file operations lose"
    return ""


@RACING.stopped_by("git runs in a sandbox that has only the checkout", {"commits": True, "compares": False})
async def swap_a_folder_while_the_host(ground: Ground, commits: bool) -> str:  # noqa: FBT001 - a case
    victim = ground.folder / "home-of-operator"
    victim.mkdir()
    for number in range(FILES):
        (victim / f"key{number}").write_text(f"{KEY} {number}\n")
    host = ground.folder / "host"
    trees = RunCheckouts(host / "repositories", git_policy=GitPolicy(sandboxed=ground.is_defended))
    tree = a_tree(host, make_source(ground.folder / "app", files=3))
    await trees.prepare([tree])
    base = await trees.base_commit(tree)
    with swapping(tree, victim):
        for number in range(TRIES):
            with suppress(ProgramFailed):
                shown = "" if commits else await trees.diff(tree, base)
                if commits:
                    await trees.commit([tree], "work")
                if KEY in shown:
                    return f"the diff of try {number}"
            # Every try starts with files that git does not know.
            with suppress(OSError):
                (tree.path / "keys" / f"new{number}").touch()
            if not (number + 1) % _TRIES_PER_SEARCH and leaked(host, tree):
                return f"in the store of objects by try {number}"
    return ""
