"""Gits and memory of earlier versions, which know only a slug, get their repository or are reported."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kingdom.bus import Bus, Record
from kingdom.bus.metrics import WorkerMetrics
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.general.slug_migration import migrate_slugs
from kingdom.court.live_packages import LivePackages
from kingdom.court.package import Package
from kingdom.court.records import save
from kingdom.court.sentinel.settings import GitHubSettings, SentinelSettings
from kingdom.log_output import configure_logs
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.roles.context import RoleContext
from kingdom.roles.general import build
from kingdom.settings import Settings
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.records import ACTIVE, GITS
from kingdom.workflow.registry import list_gits
from tests.contract.backends import BackendUnderTest
from tests.integration.court.general.scene import package, reports, work
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("backend", ["files"], indirect=True)
OURS = ("acme/*",)


@pytest.fixture
async def bus(backend: BackendUnderTest) -> AsyncIterator[Bus]:
    application = declare_application(Realm())
    async with backend.open(application.topology, application.kinds) as bus:
        yield bus


def watching(*repos: str) -> SentinelSettings:
    return SentinelSettings(github=GitHubSettings(token="t", logins=("bot",), repos=repos))  # noqa: S106


async def store_old_git(bus: Bus, git_id: str, url: str) -> None:
    """Store a Git as an earlier version did."""
    doc = msgspec.to_builtins(Git(id=git_id, name=git_id, url=url))
    del doc["repo"]
    async with bus.transaction() as transaction:
        await transaction.put(Record(kind=GITS.name, id=git_id, state=ACTIVE, doc=doc))


async def store_assignments_in(bus: Bus, *repos: str) -> None:
    """Store a completed assignment for each of these repositories."""
    async with bus.transaction() as transaction:
        for number, repo in enumerate(repos):
            assignment = Assignment(
                id=f"task-{number}",
                event_id=f"evt-github-{number}",
                target_general="gen-test",
                type="github.pr.mentioned",
                payload={},
                priority=Priority.NORMAL,
                created_at=utc_now(),
                status=AssignmentStatus.COMPLETED,
                repo=repo,
            )
            await save(transaction, assignment)


async def migrate(bus: Bus, sentinel: SentinelSettings, *packages: Package) -> tuple[dict[str, str], list[str]]:
    """Run the migration. Return the repository of each Git, and the warnings to people."""
    configure_logs(json=True, level=logging.WARNING)
    with capture_logs() as logs:
        await migrate_slugs(bus, packages, sentinel)
    warned = [str(each.get("git") or Path(each["file"]).name) for each in logs]
    return {git.id: git.repo for git in await list_gits(bus)}, warned


async def test_a_git_gets_the_repository_of_its_address_regardless_of_its_name(bus: Bus) -> None:
    await store_old_git(bus, "acme-web-app", "git@github.com:acme-web/app.git")
    await store_old_git(bus, "tools", "https://example.org/acme/tools.git")
    await store_assignments_in(bus, "acme/web-app")
    assert await migrate(bus, watching(*OURS)) == ({"acme-web-app": "acme-web/app", "tools": ""}, [])


async def test_a_git_of_a_mirror_gets_the_one_watched_repository_that_matches_its_name(bus: Bus) -> None:
    await store_old_git(bus, "acme-web-app", "/srv/web")
    await store_old_git(bus, "mirror", "/srv/acme/tools.git")
    await store_assignments_in(bus, "acme-web/app", "Acme/Web-App", "acme/tools")
    expected = {"acme-web-app": "acme/web-app", "mirror": "acme/tools"}
    assert await migrate(bus, watching(*OURS)) == (expected, [])
    # A second migration changes nothing.
    assert await migrate(bus, watching(*OURS)) == (expected, [])


async def test_a_git_gets_only_a_repository_that_the_settings_or_a_general_name(bus: Bus, tmp_path: Path) -> None:
    await store_old_git(bus, "acme-web-app", "/srv/web")
    await store_assignments_in(bus, "acme-web/app")
    assert await migrate(bus, watching("*")) == ({"acme-web-app": ""}, ["acme-web-app"])
    named = package(work("look", reports(status="success")), directory=tmp_path)
    named = msgspec.structs.replace(named, general=msgspec.structs.replace(named.general, default_repo="acme/web-app"))
    assert await migrate(bus, watching("*"), named) == ({"acme-web-app": "acme/web-app"}, [])


async def test_a_git_that_matches_two_of_our_repositories_is_reported(bus: Bus) -> None:
    await store_old_git(bus, "acme-web-app", "/srv/web")
    await store_assignments_in(bus, "acme/web-app", "acme-web/app")
    assert await migrate(bus, SentinelSettings()) == ({"acme-web-app": ""}, ["acme-web-app"])


async def test_a_memory_file_is_renamed_only_if_its_repository_is_certain(bus: Bus, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    for name in ("acme-tools", "acme-web-app", "anna-shop", "ghost"):
        (memory / f"repo-{name}.md").write_text(f"- {name}\n")
    await store_assignments_in(bus, "acme/tools", "acme/web-app", "acme-web/app", "anna/shop")
    _, warned = await migrate(bus, watching(*OURS), package(work("look"), directory=tmp_path))
    assert warned == ["repo-acme-web-app.md", "repo-anna-shop.md", "repo-ghost.md"]
    assert sorted(each.name for each in memory.iterdir()) == [*warned, "repository-acme.tools.md"]
    assert (memory / "repository-acme.tools.md").read_text() == "- acme-tools\n"


async def test_the_role_migrates_names_before_it_works(bus: Bus, tmp_path: Path) -> None:
    await store_old_git(bus, "shop", "https://github.com/acme/shop.git")
    async with AsyncExitStack() as stack:
        context = RoleContext(
            bus=bus,
            settings=Settings.read(database_url=f"file:{tmp_path / 'realm'}"),
            realm=Realm(),
            packages=LivePackages(tmp_path / "generals"),
            metrics=WorkerMetrics(CollectorRegistry()),
            directory=tmp_path,
            stack=stack,
        )
        role = build(context)
        for background in role.background:
            background.close()
        (part,) = role.runnables
        running = asyncio.create_task(part.run())

        async def is_known() -> bool:
            return [git.repo for git in await list_gits(bus)] == ["acme/shop"]

        await eventually(is_known)
        part.stop()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
