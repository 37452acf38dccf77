"""A check is run again once, even if the answer of GitHub is lost. If GitHub refuses, its event returns to the King."""

from typing import Any

import pytest

from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.followups.rules import RERUN, RERUN_REASON
from kingdom.court.petitions.github.access import AppInstallation
from kingdom.court.records import load, save
from kingdom.court.sentinel.settings import GitHubAppSettings
from kingdom.court.streams import EVENT_STREAM, PETITION_STREAM, check_rerun_due
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import REPO, Scene
from tests.integration.running import eventually
from tests.integration.standins.github_app import ACCOUNT, APP, PERMISSIONS, SLUG, app_key, public_key
from tests.unit.court.king.making import make_event

EVENT = "evt-github-1"


def runs(scene: Scene) -> list[dict[str, Any]]:
    """Return the runs of all checks on GitHub, the oldest first."""
    found: list[dict[str, Any]] = scene.github.application[STATE_FILE].state["check_runs"]
    return found


async def ask_for_rerun(scene: Scene, app: str = "github-actions") -> None:
    """Let a check be cancelled, and publish that it should be run again."""
    about = {"repository": REPO, "number": 1, "name": "unit", "app": app}
    await scene.people(scene.github, "check", **about, conclusion="cancelled")
    [run] = runs(scene)
    check = {"id": run["id"], "name": "unit", "suite": run["suite_id"], "is_job": app == "github-actions"}
    event = make_event(1, "github.checks.completed", status=EventStatus.COMPLETED, outcome=RERUN, reason=RERUN_REASON)
    async with scene.bus.transaction() as transaction:
        await save(transaction, event)
        await transaction.publish(check_rerun_due(EVENT, REPO, check))


async def is_done(scene: Scene) -> bool:
    stats = [each for each in await scene.operations.stats() if each.stream == PETITION_STREAM.name]
    assert not any(each.dead for each in stats)
    return not any(each.pending or each.processing for each in stats)


async def outcome(scene: Scene) -> str:
    async with scene.bus.transaction() as transaction:
        return (await load(transaction, ExternalEvent, EVENT))[1].outcome


@pytest.mark.parametrize("trouble", ["", "lose_answer", "truncate"])
@pytest.mark.parametrize(
    ("app", "call"), [("github-actions", "POST job rerun"), ("buildbot", "POST check run rerequest")]
)
async def test_a_check_is_run_again_once(scene: Scene, app: str, call: str, trouble: str) -> None:
    await ask_for_rerun(scene, app)
    if trouble:
        scene.trouble(scene.github, kind=trouble, method="POST")
    async with scene.performing():
        await eventually(lambda: is_done(scene))
    assert scene.made(scene.github, call) == 1
    assert [run["status"] for run in runs(scene)] == ["completed", "queued"]
    assert await outcome(scene) == RERUN


@pytest.mark.parametrize(("granted", "is_rerun"), [("write", True), ("read", False)])
async def test_an_app_needs_the_permission_and_without_it_the_check_counts_as_failed(
    scene: Scene,
    granted: str,
    is_rerun: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    await scene.people(scene.github, "app", id=APP, slug=SLUG, public_key=public_key(app_key()))
    permissions = {**PERMISSIONS, "actions": granted}
    made = await scene.people(scene.github, "installation", app=APP, account=ACCOUNT, permissions=permissions)
    settings = GitHubAppSettings(id=APP, key=app_key(), installation=made["id"])
    scene.access = AppInstallation(scene.github.url, settings)
    await ask_for_rerun(scene)
    async with scene.performing():
        await eventually(lambda: is_done(scene))
    assert scene.made(scene.github, "POST job rerun") == is_rerun
    assert await outcome(scene) == (RERUN if is_rerun else "")
    returned = sum(each.pending for each in await scene.operations.stats() if each.stream == EVENT_STREAM.name)
    assert returned == (not is_rerun)
