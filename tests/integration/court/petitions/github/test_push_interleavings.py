"""Whatever other people do to a branch while we push to it, and whenever we crash, no commit of theirs is lost."""

import copy
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kingdom.bus.effects.effect import Acked, Attempt, Present, Rejected
from kingdom.court.petitions.github.access import UserToken
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.court.remote_http import HttpReply
from kingdom.standins.github.application import build_github
from kingdom.standins.server import STATE_FILE, start
from kingdom.standins.state_file import StateFile

REPO, NUMBER, BRANCH = "acme/rocket", 1, "kingdom/wf-1/rocket"
REF = f"refs/heads/{BRANCH}"
BASE, FIRST, OURS, THEIRS, MERGED, OTHER = (letter * 40 for letter in "abcdef")
# We pushed FIRST. A run then created OURS, or a run that started at THEIRS created MERGED.
PARENTS = {FIRST: BASE, OURS: FIRST, THEIRS: FIRST, MERGED: THEIRS, OTHER: BASE}
ACTIONS = ("nothing", "push", "push ours", "remove", "rewrite", "delete", "close")
# An action happens before one of these requests: reading the branch, comparing commits, or moving the branch.
REQUESTS = (1, 2, 3, 4)
# The connection breaks at one of the last requests, before or after GitHub has executed it.
CRASHES = ((0, ""), (3, "lost"), (3, "answer lost"), (4, "answer lost"))
INTERLEAVINGS = list(itertools.product((OURS, MERGED), ACTIONS, REQUESTS, CRASHES))


class Branch:
    """The branch on GitHub, and what people and we did to it."""

    def __init__(self, file: StateFile, wanted: str) -> None:
        self._file = file
        self._wanted = wanted
        self.theirs: list[str] = []
        self.our_moves: list[tuple[str | None, str | None]] = []
        with file.change() as state:
            state["parents"][REPO] = dict(PARENTS)
            self._set(FIRST if wanted == OURS else THEIRS)

    @property
    def head(self) -> str | None:
        found: str | None = self._file.state["refs"][REPO].get(REF)
        return found

    def history(self, commit: str | None) -> list[str]:
        found = []
        while commit:
            found.append(commit)
            commit = self._file.state["parents"][REPO].get(commit)
        return found

    def act(self, action: str) -> None:
        """Let a person do something."""
        with self._file.change() as state:
            pull = state["issues"][REPO][str(NUMBER)]
            match action:
                case "push" if self.head:
                    commit = THEIRS if self.head == FIRST else f"9{self.head[1:]}"
                    state["parents"][REPO][commit] = self.head
                    self.theirs.append(commit)
                    self._set(commit)
                case "push ours" if self.head in (FIRST, THEIRS):
                    self._set(self._wanted)
                case "remove":
                    self._set(BASE)
                case "rewrite":
                    self._set(OTHER)
                case "delete":
                    state["refs"][REPO].pop(REF, None)
                    pull["state"] = "closed"
                case "close":
                    pull["state"] = "closed"

    def _set(self, commit: str) -> None:
        self._file.state["refs"].setdefault(REPO, {})[REF] = commit
        self._file.state["issues"][REPO][str(NUMBER)]["pull"]["head"]["sha"] = commit


class ScriptedApi(GithubApi):
    """Requests to GitHub, between which people act and connections break."""

    def __init__(self, url: str, branch: Branch, action: tuple[int, str], crash: tuple[int, str]) -> None:
        super().__init__(url, UserToken("github-token"))
        self._branch = branch
        self._action = action
        self._crash = crash
        self._count = 0

    async def _request(self, method: str, path: str, *arguments: Any, **options: Any) -> HttpReply:
        self._count += 1
        if self._count == self._action[0]:
            self._branch.act(self._action[1])
        if (self._count, "lost") == self._crash:
            raise ConnectionResetError
        before = self._branch.head
        reply = await super()._request(method, path, *arguments, **options)
        if self._branch.head != before:
            self._branch.our_moves.append((before, self._branch.head))
        if (self._count, "answer lost") == self._crash:
            raise ConnectionResetError
        return reply


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[tuple[str, StateFile, dict[str, Any]]]:
    running = await start(build_github(tmp_path / "github.json"))
    file = running.application[STATE_FILE]
    api = GithubApi(running.url, UserToken("github-token"))
    with file.change() as state:
        stored = {"id": 1, "private": False, "default_branch": "main", "created_at": "2026-11-18T08:00:00Z"}
        state["repositories"][REPO] = {**stored, "git": None, "collaborators": {}, "protection": {}}
        state["issues"][REPO] = {}
    await api.send(f"/repos/{REPO}/git/refs", {"ref": REF, "sha": FIRST})
    await api.send(f"/repos/{REPO}/pulls", {"title": "Fly", "head": BRANCH, "base": "main"})
    await api.close()
    yield running.url, file, copy.deepcopy(file.state)
    await running.stop()


async def perform(effect: GithubPetitions, attempt: Attempt) -> Acked | Rejected:
    """Perform a petition as the bus does: after a call with an unknown result, look it up first."""
    for _ in range(3):
        try:
            result = await effect.call(attempt)
        except ConnectionError:
            result = None
        if isinstance(result, Acked | Rejected):
            return result
        if isinstance(await effect.reconcile(attempt), Present):
            return Acked()
    raise AssertionError("the push does not end")


async def test_no_interleaving_loses_a_commit_of_another_person_or_pushes_twice(
    site: tuple[str, StateFile, dict[str, Any]],
) -> None:
    url, file, initial = site
    assert len(INTERLEAVINGS) >= 200
    pushed = 0
    for wanted, action, request, crash in INTERLEAVINGS:
        file.state = copy.deepcopy(initial)
        branch = Branch(file, wanted)
        api = ScriptedApi(url, branch, (request, action), crash)
        body = {"repo": REPO, "number": NUMBER, "branch": BRANCH, "before": FIRST, "head_sha": wanted}
        fields = {"kind": "github.push", "body": body, "mark": "m", "since": "2026-11-18T08:00:00+00:00"}
        attempt = Attempt(number=1, identifier="p", request=fields, fence=1)
        result = await perform(GithubPetitions(api, ["kingdom-bot"]), attempt)
        await api.close()
        about = f"{wanted[:1]}, {action} before request {request}, {crash}: {result}, {branch.our_moves}"
        assert len(branch.our_moves) <= 1, about
        for before, after in branch.our_moves:
            assert (after, before in branch.history(after)) == (wanted, True), about
        assert set(branch.theirs) <= set(branch.history(branch.head)), about
        was_there = bool(branch.our_moves) or wanted in branch.history(branch.head)
        assert isinstance(result, Rejected) or was_there, about
        assert isinstance(result, Acked) or not branch.our_moves or action in ("remove", "rewrite"), about
        if action == "nothing":
            assert (isinstance(result, Acked), len(branch.our_moves)) == (True, 1), about
        pushed += len(branch.our_moves)
    assert 0 < pushed < len(INTERLEAVINGS)
