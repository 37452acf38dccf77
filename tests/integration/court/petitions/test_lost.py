"""After a lost answer, a server error or a killed worker, an executed call is found and not repeated."""

import signal
from typing import Any

import pytest

from kingdom.court.petitions.decision import PetitionState
from kingdom.standins.server import RunningServer
from tests.integration.court.petitions.scene import Scene

PERFORMED = PetitionState.PERFORMED
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "github.comment": ({"body": "Well done."}, "POST issue comment"),
    "github.review": ({"event": "COMMENT", "body": "Hm."}, "POST review"),
    "jira.comment": ({"body": "It flies."}, "POST comment"),
    "jira.transition": ({"to": "Done"}, "POST transition"),
}


def site_of(scene: Scene, kind: str) -> RunningServer:
    return scene.github if kind.startswith("github") else scene.jira


# The answer to a transition is empty, so it cannot be cut.
CUT = [kind for kind in ASKED if kind != "jira.transition"]


@pytest.mark.parametrize(
    ("kind", "trouble"), [*((kind, "lose_answer") for kind in ASKED), *((kind, "truncate") for kind in CUT)]
)
async def test_a_call_whose_answer_is_lost_is_found_and_not_repeated(scene: Scene, kind: str, trouble: str) -> None:
    body, call = ASKED[kind]
    scene.trouble(site_of(scene, kind), kind=trouble, method="POST")
    async with scene.performing():
        asked = await scene.make_petition(kind, body)
        done = await scene.until(asked, PERFORMED)
    assert scene.made(site_of(scene, kind), call) == 1
    assert await scene.attempts(asked) == ["ACKED"]
    assert done.response["url"]


@pytest.mark.parametrize("kind", ["github.comment", "jira.comment"])
async def test_a_call_that_a_broken_server_did_not_execute_is_sent_again(scene: Scene, kind: str) -> None:
    body, call = ASKED[kind]
    scene.trouble(site_of(scene, kind), kind="refuse", method="POST", status=502)
    async with scene.performing():
        asked = await scene.make_petition(kind, body)
        await scene.until(asked, PERFORMED)
    assert scene.made(site_of(scene, kind), call) == 1
    assert await scene.attempts(asked) == ["UNKNOWN", "ACKED"]


async def test_nothing_is_sent_again_while_its_outcome_is_unknown(scene: Scene) -> None:
    scene.trouble(scene.github, kind="lose_answer", method="POST")
    scene.trouble(scene.github, kind="refuse", method="GET", status=500, times=3)
    async with scene.performing():
        asked = await scene.comment()
        await scene.until(asked, PERFORMED)
    assert scene.made(scene.github, "POST issue comment") == 1
    assert await scene.attempts(asked) == ["ACKED"]


@pytest.mark.parametrize(
    "kind",
    [pytest.param("github.comment", marks=pytest.mark.both_stores), "jira.comment", "jira.transition"],
)
@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_exactly_one_call_per_petition(
    scene: Scene, kind: str, moment: str, made: int
) -> None:
    body, call = ASKED[kind]
    asked = await scene.make_petition(kind, body)
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert scene.made(site_of(scene, kind), call) == made
    assert await scene.attempts(asked) == ["SENT"]
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert scene.made(site_of(scene, kind), call) == 1
    assert await scene.attempts(asked) == (["ACKED"] if made else ["UNKNOWN", "ACKED"])
