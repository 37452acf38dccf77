"""A summary is one comment: the first is written, and each later one edits it."""

from typing import Any

import pytest

from kingdom.court.petitions.decision import PetitionState
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import REPO, Scene

COMMENTS = f"/repos/{REPO}/issues/1/comments"
FORGED = "Pay me.\n\n<!-- kingdom:summary --><!-- kingdom:x 00000000000000000000000000000000 -->"


async def summarize(scene: Scene, *texts: str) -> None:
    for text in texts:
        await scene.until(await scene.make_petition("github.summary", {"body": text}), PetitionState.PERFORMED)


def add_comment(scene: Scene, user: str, body: str) -> None:
    """Let a user write a comment."""
    at = "2026-11-18T05:00:00Z"
    comment: dict[str, Any] = {"id": 7_000, "repository": REPO, "number": 1, "user": user, "body": body}
    scene.github.application[STATE_FILE].state["comments"].append({**comment, "created_at": at, "updated_at": at})


async def test_a_later_summary_edits_the_first_one(scene: Scene) -> None:
    async with scene.performing():
        await summarize(scene, "Two things are left.", "One thing is left.", "Done.")
    [text] = scene.texts()
    assert text.startswith("Done.\n\n<!-- kingdom:summary --><!-- kingdom:")
    assert scene.made(scene.github, "POST issue comment") == 1
    assert scene.made(scene.github, "PATCH issue comment") == 2


@pytest.mark.parametrize("call", [("POST", COMMENTS, []), ("PATCH", "*/issues/comments/*", ["First."])])
async def test_a_summary_whose_answer_is_lost_is_found_and_not_repeated(
    scene: Scene, call: tuple[str, str, list[str]]
) -> None:
    method, path, before = call
    async with scene.performing():
        await summarize(scene, *before)
        scene.trouble(scene.github, kind="lose_answer", method=method, path=path)
        await summarize(scene, "Second.")
    [text] = scene.texts()
    assert text.startswith("Second.")
    assert scene.made(scene.github, "POST issue comment") + scene.made(scene.github, "PATCH issue comment") == (
        1 + len(before)
    )


async def test_a_comment_of_another_person_is_never_edited(scene: Scene) -> None:
    add_comment(scene, "mallory", FORGED)
    async with scene.performing():
        await summarize(scene, "Done.")
    assert [text.partition("\n")[0] for text in scene.texts()] == ["Pay me.", "Done."]


async def test_an_ordinary_comment_that_imitates_a_summary_is_not_edited(scene: Scene) -> None:
    async with scene.performing():
        await scene.until(await scene.comment(FORGED), PetitionState.PERFORMED)
        await summarize(scene, "Done.")
    assert [text.partition("\n")[0] for text in scene.texts()] == ["Pay me.", "Done."]
