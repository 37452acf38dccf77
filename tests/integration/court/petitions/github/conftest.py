"""A run that opened a pull request on GitHub, whose repository has a git directory."""

from pathlib import Path

import pytest

from kingdom.court.petitions.decision import PetitionState
from kingdom.standins.server import STATE_FILE
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from tests.integration.court.petitions.github.own_pull_request import NUMBER, commits_become
from tests.integration.court.petitions.scene import REPO, Scene
from tests.integration.standins.bare_git import BareGit
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work


@pytest.fixture
def git(scene: Scene, tmp_path: Path) -> BareGit:
    """The git directory of the repository on GitHub."""
    git = BareGit(tmp_path / "rocket.git")
    scene.github.application[STATE_FILE].state["repositories"][REPO]["git"] = git.directory
    return git


@pytest.fixture
async def run(scene: Scene, git: BareGit) -> Run:
    """A run that opened a pull request, and whose second Work asked for a push and left another commit."""
    await create_git(
        scene.bus, Git(id="git-app", name="app", url=f"git@github.com:{REPO}.git", repo=REPO), actor="anna"
    )
    run = started(template(work("build"), work("check"), git_refs=(APP,)))
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    run.receive(spoken(run.until(commands.SendQuery, work_index=1), "p2"))
    # Without its own message, it would be the commit of the branch feature if both are created in the same second.
    first = git.commit("", "one\nzwei\n", git.base, message="Repair the fin")
    commits_become(run, 0, first)
    asked = await scene.make_petition("github.pull_request", {"title": "Repair the fin"}, run=run.workflow, name="p1")
    async with scene.performing():
        opened = await scene.until(asked, PetitionState.PERFORMED)
    assert opened.response["number"] == NUMBER
    run.finish()
    commits_become(run, 1, git.commit("", "one\ndos\n", first))
    return run
