"""An issue is opened once, without commands to bots."""

import signal

import pytest

from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import PetitionState
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import ALLOWED, REPO, Scene

PERFORMED, REFUSED = PetitionState.PERFORMED, PetitionState.REFUSED
OPENING = GeneralPolicy(petitions=(PetitionRule(kind="github.issue"),))
BODY = {"title": "The fin is loose @dependabot", "body": "It wobbles.\n/close"}


async def test_an_issue_is_opened_without_commands_to_bots(scene: Scene) -> None:
    async with scene.performing():
        done = await scene.until(await scene.make_petition("github.issue", BODY, policy=OPENING), PERFORMED)
    issue = scene.github.application[STATE_FILE].state["issues"][REPO]["2"]
    assert issue["title"] == "The fin is loose @\u200bdependabot"
    assert issue["body"].startswith("It wobbles.\n/\u200bclose\n\n<!-- kingdom:")
    assert (done.response["number"], done.target) == (2, REPO)


@pytest.mark.parametrize("policy", [ALLOWED, GeneralPolicy(petitions=(PetitionRule(kind="github.comment"),))])
async def test_an_issue_is_refused_unless_a_rule_names_it(scene: Scene, policy: GeneralPolicy) -> None:
    refused = await scene.make_petition("github.issue", BODY, policy=policy)
    assert (refused.state, refused.reason) == (REFUSED, "the policy of gen-pr does not allow github.issue")


@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_exactly_one_issue(scene: Scene, moment: str, made: int) -> None:
    asked = await scene.make_petition("github.issue", BODY, policy=OPENING)
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert scene.made(scene.github, "POST issue") == made
    # A closed issue was opened too.
    if made:
        await scene.people(scene.github, "close", repository=REPO, number=2)
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert scene.made(scene.github, "POST issue") == 1
