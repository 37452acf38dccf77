"""Labels are set and removed as a policy allows, and other labels stay."""

from typing import Any

import pytest

from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import ALLOWED, REPO, Scene

PERFORMED, FAILED, REFUSED = PetitionState.PERFORMED, PetitionState.FAILED, PetitionState.REFUSED
LABELING = GeneralPolicy(
    petitions=(
        PetitionRule(kind="github.label", labels=("ready", "size/*", "needs work"), at_most=3),
        PetitionRule(kind="github.label", labels=("merge",), targets=("acme/docs#7",)),
    )
)


def labels(scene: Scene) -> list[str]:
    found: list[str] = scene.github.application[STATE_FILE].state["issues"][REPO]["1"]["labels"]
    return found


async def ask(scene: Scene, policy: GeneralPolicy = LABELING, **body: Any) -> Petition:
    return await scene.make_petition("github.label", body, policy=policy)


async def test_labels_are_set_and_removed_and_other_labels_stay(scene: Scene) -> None:
    for name in ("needs work", "urgent"):
        await scene.people(scene.github, "label", repository=REPO, number=1, label=name)
    async with scene.performing():
        done = await scene.until(await ask(scene, labels=["ready", "size/S"], remove=["needs work"]), PERFORMED)
        await scene.until(await ask(scene, remove=["needs work"]), PERFORMED)
    assert labels(scene) == ["urgent", "ready", "size/S"]
    assert done.response == {"number": 1}


@pytest.mark.parametrize(
    ("policy", "body", "reason"),
    [
        (ALLOWED, {"labels": ["ready"]}, "the policy of gen-pr does not allow github.label"),
        (
            LABELING,
            {"labels": ["ready"], "remove": ["merge"]},
            "the policy of gen-pr does not allow merge as github.label; use one of: needs work, ready, size/*",
        ),
        (LABELING, {}, "this is not a valid github.label: it names no label: set labels or remove"),
        (
            LABELING,
            {"labels": ["ready"], "remove": ["Ready"]},
            "this is not a valid github.label: it names a label twice",
        ),
    ],
)
async def test_a_label_that_no_rule_names_is_refused(
    scene: Scene, policy: GeneralPolicy, body: dict[str, Any], reason: str
) -> None:
    refused = await ask(scene, policy, **body)
    assert (refused.state, refused.reason) == (REFUSED, reason)


async def test_labels_whose_answer_is_lost_are_found_and_not_set_again(scene: Scene) -> None:
    scene.trouble(scene.github, kind="lose_answer", method="POST", path="*/labels")
    async with scene.performing():
        await scene.until(await ask(scene, labels=["ready"]), PERFORMED)
    assert scene.made(scene.github, "POST issue labels") == 1


async def test_half_of_a_change_is_completed(scene: Scene) -> None:
    await scene.people(scene.github, "label", repository=REPO, number=1, label="needs work")
    scene.trouble(scene.github, kind="refuse", method="DELETE", path="*/labels/*")
    async with scene.performing():
        await scene.until(await ask(scene, labels=["ready"], remove=["needs work"]), PERFORMED)
    assert labels(scene) == ["ready"]


async def test_a_pull_request_that_does_not_exist_gets_no_label(scene: Scene) -> None:
    policy = GeneralPolicy(petitions=(PetitionRule(kind="github.label", labels=("ready",), targets=("acme/*",)),))
    async with scene.performing():
        failed = await scene.until(await ask(scene, policy, labels=["ready"], number=99), FAILED)
    assert failed.reason == "GitHub answered 404: Not Found"
