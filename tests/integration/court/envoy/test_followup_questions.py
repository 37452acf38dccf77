"""A question about a followed pull request outlives the round in whose thread it is asked."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kingdom.court.documents import FOLLOWUP, Assignment, AssignmentStatus, Message, MessageType
from kingdom.court.envoy.answers import PersonAnswer, submit_answer
from kingdom.court.followups.records import Followup, find_followup, save_followup
from kingdom.court.package import FollowPolicy
from kingdom.court.questions import QuestionStatus
from kingdom.court.records import load, save
from kingdom.court.streams import slot_release_due
from tests.integration.court.envoy.scene import TASK, Scene
from tests.integration.running import eventually
from tests.unit.court.king.making import make_package

PULL = "acme/app#7"
GENERAL = make_package("gen-pr", follow=FollowPolicy())


async def begin_round(scene: Scene) -> None:
    """Store a followup whose first round has begun, with a thread."""
    now = scene.clock()
    followup = Followup(
        id=PULL,
        repo="acme/app",
        number=7,
        branch="kingdom/wf-1/app",
        base="main",
        general="gen-pr",
        assignment_id=TASK,
        workflow_id=f"wf-{TASK}",
        head="a" * 40,
        created_at=now,
        ends_at=now + timedelta(days=14),
    )
    await scene.assignment()
    async with scene.bus.transaction() as transaction:
        record, assignment = await load(transaction, Assignment, TASK)
        payload = {"reasons": ["review"], "head": followup.head}
        begun = msgspec.structs.replace(assignment, type=FOLLOWUP, subject=PULL, payload=payload)
        await save(transaction, begun, record)
        await save_followup(transaction, followup, None)
    await scene.begin()


async def fail_round(scene: Scene) -> None:
    """End the round as its General does. The King then asks people, and announces the end."""
    async with scene.bus.transaction() as transaction:
        record, assignment = await load(transaction, Assignment, TASK)
        await save(transaction, msgspec.structs.replace(assignment, status=AssignmentStatus.FAILED), record)
        await transaction.publish(slot_release_due(TASK))


async def queued(scene: Scene, kind: MessageType) -> list[Message]:
    """Return the messages of a kind, the oldest first."""
    async with scene.bus.transaction() as transaction:
        found = [(await load(transaction, Message, each))[1] for each in await scene.message_ids()]
    return [each for each in found if each.type is kind]


async def end_is_announced(scene: Scene) -> None:
    """Wait until people see the question and the end of the round."""

    async def is_announced() -> bool:
        ends = [each for each in await queued(scene, MessageType.THREAD_UPDATE) if "status" in each.context]
        return bool(ends) and all(each.status == "sent" for each in ends)

    await eventually(is_announced)


async def followup_state(scene: Scene) -> str:
    async with scene.bus.transaction() as transaction:
        found = await find_followup(transaction, PULL)
    assert found
    return found[1].state


async def shown_question(scene: Scene) -> dict[str, Any]:
    [shown] = [each for each in await scene.app_messages() if each["text"].startswith("May gen-pr go on")]
    return shown


@pytest.mark.parametrize("way", ["click", "reply"])
async def test_the_question_after_a_failed_round_can_be_answered_after_the_end_of_the_round_was_shown(
    scene: Scene, dana: str, way: str
) -> None:
    async with scene.king(GENERAL), scene.envoy():
        await begin_round(scene)
        await fail_round(scene)
        await end_is_announced(scene)
        assert (await scene.open_question()).status is QuestionStatus.OPEN
        assert await scene.remembered("thread-mappings") == {}
        shown = await shown_question(scene)
        if way == "click":
            await scene.click(shown, dana)
        else:
            await scene.reply(shown["thread_ts"], dana, "continue")

        async def goes_on() -> bool:
            return await followup_state(scene) == "open"

        await eventually(goes_on)

        async def has_no_buttons() -> bool:
            return f"Answered by <@{dana}>: continue" in (await shown_question(scene))["text"]

        await eventually(has_no_buttons)
    assert await scene.remembered("awaiting-responses") == {}


async def test_people_are_reminded_of_the_question_after_a_failed_round_until_it_is_answered_elsewhere(
    scene: Scene,
) -> None:
    async with scene.king(GENERAL), scene.envoy(listens=False) as envoy:
        await begin_round(scene)
        await fail_round(scene)
        await end_is_announced(scene)
        scene.clock.ahead = timedelta(hours=25)
        await envoy.remind()
        [reminder] = [each for each in await queued(scene, MessageType.THREAD_UPDATE) if "reminder" in each.context]
        assert reminder.content.startswith("A question has waited for a day: May gen-pr go on")
        await scene.is_sent(reminder)
        assert (await scene.app_messages())[-1]["thread_ts"] == (await shown_question(scene))["thread_ts"]
        stop = PersonAnswer(source="cli", question_id=TASK, text="stop", person="root", at="1.0")
        async with scene.bus.transaction() as transaction:
            assert (await submit_answer(transaction, stop, scene.clock())).is_new
        await scene.is_answered()
        await envoy.remind()
        assert await followup_state(scene) == "ended"
        assert "Answered by root: stop" in (await shown_question(scene))["text"]


async def test_an_envoy_that_sends_the_end_of_a_round_after_the_next_question_was_asked_leaves_it_open(
    scene: Scene,
) -> None:
    async with scene.envoy():
        await begin_round(scene)
        await scene.is_sent(await scene.ask_person("Which branch?", "main", "next"))
    end = await scene.update("The round is over.", status="completed")
    asked = await scene.ask_person("May gen-pr go on?", "continue", "stop", followup=PULL)
    async with scene.envoy():
        await scene.is_sent(end, asked)
        assert (await scene.open_question()).status is QuestionStatus.OPEN
        [shown] = (await scene.remembered("awaiting-responses")).values()
        assert shown["msg_id"] == asked.id

        async def only_the_new_question_has_buttons() -> bool:
            messages = await scene.app_messages()
            with_buttons = [each["text"] for each in messages if "kingdom_answer_" in str(each.get("blocks"))]
            return with_buttons == ["May gen-pr go on?"]

        await eventually(only_the_new_question_has_buttons)
