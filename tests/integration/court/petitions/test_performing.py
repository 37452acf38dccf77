"""A granted petition is performed once, and its end is recorded and reported."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from kingdom.clock import utc_now
from kingdom.court.documents import Message
from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.records import MESSAGES
from kingdom.standins.server import STATE_FILE
from tests.contract.scene import eventually
from tests.integration.court.petitions.scene import REPO, ROOT, TICKET, Scene, assignment

PERFORMED, FAILED, REFUSED = PetitionState.PERFORMED, PetitionState.FAILED, PetitionState.REFUSED
APPROVING = GeneralPolicy(petitions=(PetitionRule(kind="github.review", targets=(f"{REPO}#*",), events=("APPROVE",)),))
COMMANDS = "@dependabot merge\n/approve\nFine."


async def test_a_comment_is_written_once_and_its_general_is_notified(scene: Scene) -> None:
    async with scene.performing():
        asked = await scene.comment("Well done.")
        done = await scene.until(asked, PERFORMED)
    [text] = scene.texts()
    assert text.startswith("Well done.\n\n<!-- kingdom:")
    assert done.response["url"].startswith(f"{scene.github.url}/{REPO}/issues/1#issuecomment-")
    assert await scene.attempts(asked) == ["ACKED"]
    assert await scene.settled() == [("PetitionSettled", ROOT)]
    assert [record.indexed["root"] for record in await scene.records("petition")] == [ROOT]


async def test_a_review_is_sent_with_its_verdict(scene: Scene) -> None:
    async with scene.performing():
        await scene.until(await scene.make_petition("github.review", {"event": "APPROVE"}, policy=APPROVING), PERFORMED)
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    assert review["state"] == "APPROVED"
    assert review["body"].startswith("<!-- kingdom:")


async def test_an_approving_review_that_the_policy_does_not_allow_is_never_sent(scene: Scene) -> None:
    refused = await scene.make_petition("github.review", {"event": "APPROVE", "body": "Fine."})
    assert refused.state is REFUSED
    assert "no github.review with the event APPROVE; use one of: COMMENT, REQUEST_CHANGES" in refused.reason
    assert await scene.waiting() == []


async def test_no_text_of_an_agent_reaches_a_bot_as_a_command(scene: Scene) -> None:
    async with scene.performing():
        for kind, body in (
            ("github.comment", {"body": COMMANDS}),
            ("github.review", {"event": "COMMENT", "body": COMMANDS}),
            ("jira.comment", {"body": COMMANDS}),
        ):
            await scene.until(await scene.make_petition(kind, body), PERFORMED)
    [review] = scene.github.application[STATE_FILE].state["reviews"]
    [comment] = scene.jira.application[STATE_FILE].state["tickets"][TICKET]["comments"]
    for text in (*scene.texts(), review["body"], str(comment["body"])):
        assert "@\u200bdependabot merge" in text.replace("\\u200b", "\u200b")
        assert "/\u200bapprove" in text.replace("\\u200b", "\u200b")


async def test_a_command_that_the_policy_lists_reaches_its_bot(scene: Scene) -> None:
    rule = PetitionRule(kind="github.comment", commands=("/approve",))
    async with scene.performing():
        await scene.until(await scene.comment(COMMANDS, policy=GeneralPolicy(petitions=(rule,))), PERFORMED)
    [text] = scene.texts()
    assert text.startswith("@\u200bdependabot merge\n/approve\nFine.")


async def test_a_ticket_is_commented_and_moved(scene: Scene) -> None:
    async with scene.performing():
        comment = await scene.make_petition("jira.comment", {"body": "It flies.\n\nNow."})
        move = await scene.make_petition("jira.transition", {"to": "in review"})
        commented, moved = await scene.until(comment, PERFORMED), await scene.until(move, PERFORMED)
        again = await scene.make_petition("jira.transition", {"to": "In Review"})
        unchanged = await scene.until(again, PERFORMED)
    ticket = scene.jira.application[STATE_FILE].state["tickets"][TICKET]
    lines = [
        "".join(text["text"] for text in part.get("content", ())) for part in ticket["comments"][0]["body"]["content"]
    ]
    assert lines[:3] == ["It flies.", "", "Now."]
    assert commented.response["url"].startswith(f"{scene.jira.url}/browse/{TICKET}?focusedCommentId=")
    assert (ticket["status"], moved.response["to"]) == ("In Review", "in review")
    assert unchanged.response["unchanged"] is True
    assert scene.made(scene.jira, "POST transition") == 1


async def test_the_same_petition_is_performed_once_however_often_it_is_requested(scene: Scene) -> None:
    first = await scene.comment("Well done.", name="t-a1-p1")
    second = await scene.make_petition(
        "github.comment", {"body": "Well done.", "repo": "Acme/Rocket", "number": 1}, name="t-a2-p1"
    )
    async with scene.performing():
        await scene.until(first, PERFORMED)
        third = await scene.comment("Well done.", name="t-a3-p1")
        other = await scene.comment("Very well done.")
        await scene.until(other, PERFORMED)
    assert first.id == second.id == third.id
    assert third.state is PERFORMED
    assert third.asked_as == ("t-a1-p1", "t-a2-p1", "t-a3-p1")
    assert len(scene.texts()) == scene.made(scene.github, "POST issue comment") == 2


async def test_a_petition_that_the_policy_forbids_is_never_sent(scene: Scene) -> None:
    async with scene.performing():
        stranger = await scene.make_petition("github.comment", {"repo": "acme/other", "number": 1, "body": "Hm."})
        unknown = await scene.make_petition("github.merge", {"number": 1})
        broken = await scene.make_petition("github.comment", {"text": "Hm."})
        allowed = [await scene.comment(f"Comment {number}.") for number in range(3)]
        fourth = await scene.comment("Comment 3.")
        for each in allowed:
            await scene.until(each, PERFORMED)
    assert [each.state for each in (stranger, unknown, broken, fourth)] == [REFUSED] * 4
    assert "more specific glob" in stranger.reason
    assert "not a kind of petition" in unknown.reason
    assert "this is not a valid github.comment" in broken.reason
    assert "at most 3" in fourth.reason
    assert len(scene.texts()) == 3


async def test_a_refusal_by_github_fails_with_its_reason_and_can_be_requested_again(scene: Scene) -> None:
    nowhere = assignment(payload={"number": 99})
    async with scene.performing():
        asked = await scene.comment("Well done.", root=nowhere)
        failed = await scene.until(asked, FAILED)
        assert failed.reason == "GitHub answered 404: Not Found"
        assert await scene.settled() == [("PetitionSettled", ROOT)]
        for number in range(98):
            await scene.people(scene.github, "issue", repository=REPO, title=f"Issue {number}")
        await scene.comment("Well done.", root=nowhere)
        await scene.until(asked, PERFORMED)
    assert await scene.attempts(asked) == ["REJECTED", "ACKED"]
    assert len(scene.texts()) == 1


async def test_a_verdict_that_github_refuses_fails_with_its_reason(scene: Scene) -> None:
    own = {"repository": REPO, "title": "Add a window", "head": "window", "by": "kingdom-bot"}
    number = (await scene.people(scene.github, "pull_request", **own))["number"]
    async with scene.performing():
        asked = await scene.make_petition("github.review", {"number": number, "event": "APPROVE"}, policy=APPROVING)
        failed = await scene.until(asked, FAILED)
    assert "422" in failed.reason
    assert "Can not approve your own pull request" in failed.reason


async def test_an_unknown_transition_fails_with_the_names_of_the_available_ones(scene: Scene) -> None:
    async with scene.performing():
        failed = await scene.until(await scene.make_petition("jira.transition", {"to": "Flying"}), FAILED)
    assert "QP-1 has no transition to 'Flying'" in failed.reason
    assert "Done, In Progress" in failed.reason


@pytest.mark.parametrize(
    "limit",
    [
        {"fault": {"kind": "refuse", "method": "POST", "status": 429, "retry_after": 1}},
        {"limits": {"secondary": {"method": "POST", "retry_after": 1}}},
        {"limits": {"remaining": 0, "reset_seconds": 600}},
    ],
    ids=["too many", "secondary", "primary"],
)
async def test_a_throttled_petition_waits_as_long_as_github_demands(scene: Scene, limit: dict[str, Any]) -> None:
    async with scene.performing():
        begun = utc_now()
        if "fault" in limit:
            scene.trouble(scene.github, **limit["fault"])
        else:
            await scene.people(scene.github, "limits", **limit["limits"])
        asked = await scene.comment()
        if "reset_seconds" in limit.get("limits", {}):
            # The limit of GitHub lasts for minutes, and tests do not wait that long.
            [due_at] = await eventually(partial(throttled_until, scene, asked), "GitHub throttles the petition")
            assert due_at > begun + timedelta(seconds=590)
            return
        done = await scene.until(asked, PERFORMED)
    assert done.ended_at
    assert done.ended_at > begun + timedelta(seconds=0.9)
    assert await scene.attempts(asked) == ["THROTTLED", "ACKED"]
    assert len(scene.texts()) == 1


async def throttled_until(scene: Scene, asked: Petition) -> list[datetime]:
    """Return when a throttled petition is due again, or nothing if it is not throttled yet."""
    if await scene.attempts(asked) != ["THROTTLED", "PREPARED"]:
        return []
    return [each.due_at for each in await scene.waiting() if each.status == "PENDING" and each.due_at]


async def test_a_limit_of_github_does_not_hold_back_jira(scene: Scene) -> None:
    scene.trouble(scene.github, kind="refuse", method="POST", status=429, retry_after=600)
    async with scene.performing():
        asked = await scene.comment()

        async def throttled() -> bool:
            return await scene.attempts(asked) == ["THROTTLED", "PREPARED"]

        await eventually(throttled, "GitHub throttles the petition")
        elsewhere = assignment(id="task-20261115-002")
        await scene.make_petition("jira.comment", {"body": "It flies."}, root=elsewhere)
        await eventually(lambda: scene.made(scene.jira, "POST comment"), "Jira has the comment")
    assert scene.texts() == []


async def test_a_message_to_people_is_left_to_the_envoy(scene: Scene) -> None:
    asked = await scene.make_petition("slack.message", {"text": "It flies."})
    again = await scene.make_petition("slack.message", {"text": "It flies."})
    elsewhere = await scene.make_petition("slack.message", {"text": "It flies.", "channel": "board"})
    assert (asked.state, again.state, elsewhere.state) == (PERFORMED, PERFORMED, REFUSED)
    [record] = await scene.records(MESSAGES.name)
    assert asked.response == {"message_id": record.id}
    assert (record.doc["type"], record.doc["channel"], record.doc["content"]) == ("notification", "dev", "It flies.")
    assert record.doc["context"]["task_id"] == ROOT
    assert set(record.doc) == set(Message.__struct_fields__)
