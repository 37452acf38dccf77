"""A review comments on lines of the diff; a comment on another line moves into its text."""

from typing import Any

import msgspec
import pytest

from kingdom.court.petitions.bodies import AssignmentSubject, read_body
from kingdom.court.petitions.decision import PetitionState
from kingdom.errors import MalformedEvent
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import REPO, Scene

PATCH = """\
@@ -1,3 +1,4 @@
 one
-two
+zwei
+drei
 four
@@ -9 +10 @@ def late():
-old
+new
\\ No newline at end of file
"""
SUBJECT = AssignmentSubject(repo=REPO, number=1)


def show_diff(scene: Scene, patch: str = PATCH) -> None:
    """Let the pull request of the scene change one file."""
    [pull] = [each for each in scene.github.application[STATE_FILE].state["issues"][REPO].values() if each["pull"]]
    pull["pull"]["files"] = [{"filename": "a.py", "status": "modified", "additions": 3, "deletions": 2, "patch": patch}]


def comments(*places: tuple[str, int, str], body: str = "Why?") -> list[dict[str, Any]]:
    return [{"path": path, "line": line, "side": side, "body": body} for path, line, side in places]


async def perform(scene: Scene, *places: tuple[str, int, str], body: str = "Why?") -> None:
    review = {"event": "REQUEST_CHANGES", "body": "See below.", "comments": comments(*places, body=body)}
    async with scene.performing():
        await scene.until(await scene.make_petition("github.review", review), PetitionState.PERFORMED)


def written(scene: Scene) -> list[tuple[str, int, str]]:
    stored = scene.github.application[STATE_FILE].state["review_comments"]
    return [(each["path"], each["line"], each["side"]) for each in stored]


async def test_a_comment_on_a_line_of_the_diff_is_written_there(scene: Scene) -> None:
    show_diff(scene)
    inside = [
        ("a.py", 1, "RIGHT"),
        ("a.py", 2, "LEFT"),
        ("a.py", 3, "RIGHT"),
        ("a.py", 9, "LEFT"),
        ("a.py", 10, "RIGHT"),
    ]
    await perform(scene, *inside)
    assert written(scene) == inside
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    assert (review["state"], review["body"].startswith("See below.\n\n<!-- kingdom:")) == ("CHANGES_REQUESTED", True)
    assert scene.made(scene.github, "POST review") == 1


async def test_a_character_that_breaks_lines_in_python_shifts_no_comment(scene: Scene) -> None:
    show_diff(scene, "@@ -1,2 +1,3 @@\n one\f\x1c\x85\u2028two\n+drei\n four")
    await perform(scene, ("a.py", 2, "RIGHT"), ("a.py", 3, "RIGHT"), ("a.py", 4, "RIGHT"))
    assert written(scene) == [("a.py", 2, "RIGHT"), ("a.py", 3, "RIGHT")]


async def test_a_comment_on_another_line_moves_into_the_text(scene: Scene) -> None:
    show_diff(scene)
    await perform(scene, ("a.py", 5, "RIGHT"), ("a.py", 3, "LEFT"), ("b.py", 1, "RIGHT"), ("a.py", 2, "RIGHT"))
    assert written(scene) == [("a.py", 3, "LEFT"), ("a.py", 2, "RIGHT")]
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    assert "See below.\n\n`a.py` line 5:\nWhy?\n\n`b.py` line 1:\nWhy?\n\n<!-- kingdom:" in review["body"]


async def test_every_comment_moves_into_the_text_if_github_refuses_their_lines(scene: Scene) -> None:
    show_diff(scene)
    reviews = f"/repos/{REPO}/pulls/1/reviews"
    scene.trouble(scene.github, kind="refuse", status=422, method="POST", path=reviews)
    await perform(scene, ("a.py", 2, "RIGHT"))
    assert written(scene) == []
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    assert "`a.py` line 2:\nWhy?" in review["body"]


async def test_a_line_comment_reaches_no_bot_as_a_command(scene: Scene) -> None:
    show_diff(scene)
    await perform(scene, ("a.py", 2, "RIGHT"), ("b.py", 2, "RIGHT"), body="/approve\n@dependabot merge")
    [stored] = scene.github.application[STATE_FILE].state["review_comments"]
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    for text in (stored["body"], review["body"]):
        assert "/approve" not in text
        assert "@dependabot" not in text


async def test_a_review_whose_answer_is_lost_is_found_with_its_comments_and_not_repeated(scene: Scene) -> None:
    show_diff(scene)
    reviews = f"/repos/{REPO}/pulls/1/reviews"
    scene.trouble(scene.github, kind="lose_answer", method="POST", path=reviews)
    await perform(scene, ("a.py", 2, "RIGHT"))
    assert scene.made(scene.github, "POST review") == 1
    assert written(scene) == [("a.py", 2, "RIGHT")]


def test_a_review_without_line_comments_has_no_field_for_them() -> None:
    review = read_body("github.review", {"event": "COMMENT", "body": "Fine."}, SUBJECT)
    fields = {"repo": REPO, "number": 1, "body": "Fine.", "event": "COMMENT"}
    assert msgspec.to_builtins(review) == fields


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/etc/passwd"},
        {"path": "a`b"},
        {"path": "a\nb"},
        {"line": 0},
        {"side": "TOP"},
        {"body": " "},
        {"start_line": 1},
    ],
)
def test_an_invalid_line_comment_is_refused(changed: dict[str, Any]) -> None:
    [comment] = comments(("a.py", 2, "RIGHT"))
    with pytest.raises(MalformedEvent):
        read_body("github.review", {"event": "COMMENT", "comments": [{**comment, **changed}]}, SUBJECT)
