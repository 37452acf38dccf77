"""Two repositories with the same slug share neither a clone nor a memory."""

from pathlib import Path

import pytest

from bench.crash_sweep.scene import make_repository
from kingdom.court.documents import EventStatus
from kingdom.soldiers.checkouts.repository import clone_name
from kingdom.workflow import lifecycle
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from tests.integration.court.general.scene import GENERAL, CourtScene, reports, work

pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)
PRIVATE, STRANGE = "acme/web-app", "acme-web/app"
# The slug of both repositories, by which earlier versions looked up a Git.
SLUG = "acme-web-app"


async def knows(court: CourtScene, git_id: str, repo: str) -> Path:
    source = make_repository(court.folder / "sources" / repo)
    await create_git(court.bus, Git(id=git_id, name=git_id, url=str(source), repo=repo), actor="anna")
    return source


async def git_of(court: CourtScene, event_id: str) -> str:
    event = await court.until_event(event_id, EventStatus.COMPLETED)
    run = await lifecycle.show(court.bus, f"wf-{event.routes[0].assignment_id}")
    (tree,) = run.work_trees
    return tree.ref.git_id


async def test_an_event_of_another_repository_with_the_same_slug_never_uses_the_clone(court: CourtScene) -> None:
    court.has(work("look", reports(status="success", summary="looked")))
    await knows(court, SLUG, PRIVATE)
    event = await court.until_event(await court.send_event(repo=STRANGE), EventStatus.FAILED)
    assert f"the repository {STRANGE} is not registered" in event.reason
    assert "kingdom git create acme-web.app ADDRESS --repo acme-web/app" in event.reason
    assert not list((court.folder / "host-a" / "repositories").glob("*.git"))


async def test_two_repositories_with_the_same_slug_each_have_their_own_git_clone_and_memory(court: CourtScene) -> None:
    learned = [{"about": "repo", "text": "The vault is below the stairs."}]
    court.has(work("learn", reports(status="success", summary="learned", memory_updates=learned)))
    private = await knows(court, SLUG, PRIVATE)
    assert await git_of(court, await court.send_event(repo="Acme/Web-App")) == SLUG
    strange = await knows(court, "other", STRANGE)
    court.has(work("look", reports(status="success", summary="looked")))
    event_id = await court.send_event(repo=STRANGE)
    assert await git_of(court, event_id) == "other"
    run = await lifecycle.show(court.bus, f"wf-{(await court.event(event_id)).routes[0].assignment_id}")
    assert "vault" not in run.works[0].definition.instructions
    clones = {each.name for each in (court.folder / "host-a" / "repositories").glob("*.git")}
    assert clones == {clone_name(SLUG, str(private)), clone_name("other", str(strange))}
    memory = court.folder / "generals" / GENERAL / "memory"
    assert [each.name for each in memory.iterdir()] == ["repository-acme.web-app.md"]
