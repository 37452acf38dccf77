"""People approve petitions by a button or by a command, and never by accident."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.court.documents import Message, MessageType
from kingdom.court.questions import (
    APPROVE,
    REJECT,
    WITHOUT_RUN,
    HumanQuestion,
    QuestionStatus,
    load_question,
    save_question,
)
from kingdom.court.streams import SETTLED_STREAM
from tests.acceptance.terminal import Done, Terminal
from tests.integration.court.envoy.scene import TASK, Scene
from tests.integration.running import eventually

PETITION = f"{TASK}-0123456789abcdef0123456789abcdef"


@pytest.fixture
def terminal(scene: Scene, tmp_path: Path) -> Terminal:
    place = scene.backend.place
    return Terminal(tmp_path, f"file:{place}" if scene.backend.name == "files" else place)


async def run(terminal: Terminal, *words: str) -> Done:
    return await asyncio.to_thread(terminal.run, *words)


async def ask_for_approval(scene: Scene) -> Message:
    """Ask about a petition, as its General does."""
    now = scene.clock()
    ask = HumanQuestion(
        id=PETITION,
        assignment_id=TASK,
        petition=PETITION,
        general="gen-pr",
        workflow_id=WITHOUT_RUN,
        text="May gen-pr do this?",
        choices=(APPROVE, REJECT),
        exact=True,
        asked_at=now,
        due_at=now + timedelta(days=30),
    )
    async with scene.bus.transaction() as transaction:
        await save_question(transaction, ask)
    context: dict[str, Any] = {"task_id": TASK, "ask_id": PETITION, "choices": list(ask.choices)}
    return await scene.send_message(MessageType.HUMAN_INPUT_REQUEST, ask.text, **context)


async def the_question(scene: Scene) -> HumanQuestion:
    async with scene.bus.transaction() as transaction:
        found = await load_question(transaction, PETITION)
    assert found
    return found[1]


async def is_answered(scene: Scene) -> None:
    async def has_an_answer() -> bool:
        return (await the_question(scene)).status is QuestionStatus.ANSWERED

    await eventually(has_an_answer)


def count_notices(scene: Scene) -> int:
    """Return how often the General was notified."""
    return sum(row.stream == SETTLED_STREAM.name for row in scene.backend.picture().rows)


async def test_a_click_approves_a_petition_and_nothing_else(scene: Scene, dana: str) -> None:
    async with scene.envoy(), scene.king():
        await scene.begin()
        await scene.is_sent(await ask_for_approval(scene))
        await scene.is_sent(await scene.ask_person("Shall it go on?", APPROVE, REJECT, exact=True))
        _, petition, gate = await scene.app_messages()
        assert petition["thread_ts"] == gate["thread_ts"]
        await scene.click(petition, dana, 0)
        await is_answered(scene)

        async def looks_ended() -> bool:
            _, shown, _ = await scene.app_messages()
            return "approve" in shown["text"]

        await eventually(looks_ended)
    ask = await the_question(scene)
    assert (ask.answer, ask.answered_by) == (APPROVE, dana)
    assert (await scene.open_question()).status is QuestionStatus.OPEN
    assert set(await scene.remembered("awaiting-responses")) == {TASK}
    assert count_notices(scene) == 1


async def test_a_reply_in_the_thread_is_for_the_assignment_and_approves_no_petition(scene: Scene, dana: str) -> None:
    async with scene.envoy(), scene.king():
        await scene.begin()
        await scene.is_sent(await ask_for_approval(scene))
        [_, petition] = await scene.app_messages()
        assert "reply in this thread" not in str(petition["blocks"])
        await scene.reply(petition["thread_ts"], dana, APPROVE)
        await scene.is_sent(await scene.ask_person("Shall it go on?", APPROVE, REJECT, exact=True))
        await scene.reply(petition["thread_ts"], dana, APPROVE)
        await scene.is_answered()
    assert (await the_question(scene)).status is QuestionStatus.OPEN
    assert count_notices(scene) == 0


@pytest.mark.parametrize("backend", ["files"], indirect=True)
@pytest.mark.parametrize("name", [PETITION, PETITION[-8:]])
async def test_a_command_approves_a_petition_by_its_id_or_the_end_of_it(
    scene: Scene, terminal: Terminal, name: str
) -> None:
    await scene.assignment()
    await ask_for_approval(scene)
    [shown] = (await run(terminal, "inbox", "--json")).document
    assert (shown["task_id"], shown["petition_id"], shown["choices"]) == (PETITION, PETITION, [APPROVE, REJECT])
    wrong = await run(terminal, "answer", TASK, APPROVE)
    assert (wrong.code, "has no open question" in wrong.err) == (1, True)
    done = await run(terminal, "answer", name, APPROVE)
    assert done.code == 0, done.err
    ask = await the_question(scene)
    assert (ask.status, ask.answered_by, count_notices(scene)) == (QuestionStatus.ANSWERED, "tester", 1)
    twice = await run(terminal, "answer", PETITION, REJECT)
    assert (twice.code, "already answered by tester" in twice.err) == (1, True)


async def test_a_reminder_of_a_petition_is_in_the_thread_of_its_assignment(scene: Scene) -> None:
    await scene.assignment()
    async with scene.envoy(listens=False) as envoy:
        await scene.begin()
        await scene.is_sent(await ask_for_approval(scene))
        scene.clock.ahead = timedelta(hours=25)
        await envoy.remind()

        async def is_reminded() -> bool:
            return len(await scene.app_messages()) == 3

        await eventually(is_reminded)
        start, question, reminder = await scene.app_messages()
    assert reminder["thread_ts"] == question["thread_ts"] == start["ts"]
    assert ", the petition is refused." in reminder["text"]
