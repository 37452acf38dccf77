"""A reply to a review thread is written once, and only a thread that we opened is resolved with it."""

import signal
from typing import Any

import pytest

from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import PetitionState
from kingdom.standins.server import STATE_FILE
from tests.integration.court.petitions.scene import REPO, Scene

PERFORMED, FAILED = PetitionState.PERFORMED, PetitionState.FAILED
WIDE = GeneralPolicy(petitions=(PetitionRule(kind="github.reply", targets=("acme/*",), at_most=9),))
REPLY = "POST review comment reply"
FILE = {"filename": "fin.py", "status": "modified", "patch": "@@ -1 +1 @@\n-a\n+b", "additions": 1, "deletions": 1}


@pytest.fixture
def thread(scene: Scene) -> str:
    """A thread of a reviewer."""
    return open_thread(scene, "alice")


def open_thread(scene: Scene, user: str) -> str:
    """Let a user comment on a line."""
    file = scene.github.application[STATE_FILE]
    with file.change() as state:
        state["issues"][REPO]["1"]["pull"]["files"] = [FILE]
        number, at = 9_000 + len(state["review_comments"]), "2026-11-18T05:00:00Z"
        about = {"id": number, "review_id": 1, "repository": REPO, "number": 1, "user": user, "body": "Why?"}
        where = {"path": "fin.py", "line": 1, "side": "RIGHT", "position": 1, "start_line": None, "diff_hunk": ""}
        times = {"created_at": at, "updated_at": at, "commit_id": "c" * 40, "original_commit_id": "c" * 40}
        state["review_comments"].append({**about, **where, **times, "in_reply_to": None})
    return f"PRRT_{number}"


def comments(scene: Scene) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scene.github.application[STATE_FILE].state["review_comments"]
    return found


async def test_a_reply_appears_in_its_thread_without_commands_to_bots(scene: Scene, thread: str) -> None:
    async with scene.performing():
        asked = await scene.make_petition("github.reply", {"thread": thread, "body": "Because.\n/merge"})
        done = await scene.until(asked, PERFORMED)
    first, reply = comments(scene)
    assert (reply["in_reply_to"], reply["user"]) == (first["id"], "kingdom-bot")
    assert reply["body"].startswith("Because.\n/\u200bmerge\n\n<!-- kingdom:")
    assert done.response["id"] == reply["id"]


async def test_a_thread_is_found_by_the_number_of_its_first_comment(scene: Scene) -> None:
    ours = open_thread(scene, "kingdom-bot").removeprefix("PRRT_")
    async with scene.performing():
        body = {"thread": ours, "body": "Done.", "resolve": True}
        await scene.until(await scene.make_petition("github.reply", body), PERFORMED)
        unknown = await scene.make_petition("github.reply", {"thread": "1", "body": "Done."})
        failed = await scene.until(unknown, FAILED)
    first, reply = comments(scene)
    assert (reply["in_reply_to"], first["resolved_by"]) == (first["id"], "kingdom-bot")
    assert failed.reason == f"1 is not a review thread of {REPO}#1"


async def test_only_a_thread_that_we_opened_is_resolved(scene: Scene, thread: str) -> None:
    ours = open_thread(scene, "kingdom-bot")
    async with scene.performing():
        body = {"body": "Done.", "resolve": True}
        failed = await scene.until(await scene.make_petition("github.reply", {"thread": thread, **body}), FAILED)
        await scene.until(await scene.make_petition("github.reply", {"thread": ours, **body}), PERFORMED)
    assert failed.reason == "alice opened the thread, and we resolve only our own: reply without `resolve`"
    assert [each.get("resolved_by") for each in comments(scene)[:2]] == [None, "kingdom-bot"]
    assert scene.made(scene.github, REPLY) == 1


async def test_a_thread_of_another_pull_request_gets_no_reply(scene: Scene, thread: str) -> None:
    await scene.people(scene.github, "pull_request", repository=REPO, title="Steer", head="steer")
    async with scene.performing():
        for wrong in ({"thread": thread, "number": 2}, {"thread": "PRRT_1"}):
            asked = await scene.make_petition("github.reply", {"body": "Hm.", "repo": REPO, **wrong}, policy=WIDE)
            failed = await scene.until(asked, FAILED)
            assert "PRRT" in failed.reason
    assert scene.made(scene.github, REPLY) == 0


async def test_a_reply_whose_answer_is_lost_is_found_and_not_repeated(scene: Scene, thread: str) -> None:
    scene.trouble(scene.github, kind="lose_answer", method="POST", path="*/replies")
    async with scene.performing():
        await scene.until(await scene.make_petition("github.reply", {"thread": thread, "body": "Because."}), PERFORMED)
    assert scene.made(scene.github, REPLY) == 1


@pytest.mark.parametrize(("moment", "made"), [("before", 0), ("after", 1)])
async def test_a_killed_worker_leaves_one_reply_and_a_resolved_thread(scene: Scene, moment: str, made: int) -> None:
    ours = open_thread(scene, "kingdom-bot")
    asked = await scene.make_petition("github.reply", {"thread": ours, "body": "Done.", "resolve": True})
    assert await scene.run_until_killed(moment) == -signal.SIGKILL
    assert scene.made(scene.github, REPLY) == made
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert scene.made(scene.github, REPLY) == scene.made(scene.github, "mutation resolveReviewThread") == 1


async def test_a_forged_mark_of_another_person_does_not_count_as_our_reply(scene: Scene, thread: str) -> None:
    asked = await scene.make_petition("github.reply", {"thread": thread, "body": "Because."})
    assert await scene.run_until_killed("after") == -signal.SIGKILL
    reply = comments(scene)[1]
    reply["user"] = "mallory"
    async with scene.performing():
        await scene.until(asked, PERFORMED)
    assert [each["user"] for each in comments(scene)] == ["alice", "mallory", "kingdom-bot"]
